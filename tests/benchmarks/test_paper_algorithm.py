"""The student of the paper's algorithm: images in range, and steps towards what the votes asked for."""

from __future__ import annotations

import torch

from benchmarks.paper_algorithm import PixelStudent
from workers.recipes.teacher_stage import Release


def test_the_student_moves_towards_its_targets() -> None:
    torch.manual_seed(0)
    student, labels, gaps = PixelStudent(3), torch.arange(30) % 3, []
    for _ in range(40):
        images = student.propose(labels).detach()
        assert images.shape == (30, 784)
        assert images.min() >= 0
        assert images.max() <= 1
        gaps.append(float((1 - images).square().mean()))
        direction = torch.ones_like(images)
        student.learn([Release(images, labels, direction * 100, direction, images + direction)])
    assert gaps[-1] < 0.2 * gaps[0]
