"""Reasons for rejecting an upload. `service.ingest.faults` has the message for each reason."""

from __future__ import annotations

from enum import StrEnum


class Fault(StrEnum):
    """Reason for rejecting an upload."""

    EMPTY = "empty"
    TOO_LARGE = "too_large"
    INCOMPLETE = "incomplete"
    ARCHIVE_BROKEN = "archive_broken"
    ARCHIVE_ENTRIES = "archive_entries"
    ARCHIVE_SIZE = "archive_size"
    ARCHIVE_RATIO = "archive_ratio"
    ARCHIVE_DUPLICATE = "archive_duplicate"
    ARCHIVE_OVERLAP = "archive_overlap"
    ARCHIVE_PATH = "archive_path"
    ARCHIVE_SPECIAL = "archive_special"
    ARCHIVE_NESTED = "archive_nested"
    ARCHIVE_ENCRYPTED = "archive_encrypted"
    ARCHIVE_METHOD = "archive_method"
    LAYOUT = "layout"
    CLASS_UNDECLARED = "class_undeclared"
    RECORDS_TOO_MANY = "records_too_many"
    IMAGE_FORMAT = "image_format"
    IMAGE_PIXELS = "image_pixels"
    IMAGE_SIZE = "image_size"
    IMAGE_FRAMES = "image_frames"
    IMAGE_SCANS = "image_scans"
    IMAGE_PARTS = "image_parts"
    IMAGE_MODE = "image_mode"
    IMAGE_TRANSPARENT = "image_transparent"
    IMAGE_BROKEN = "image_broken"
    ARRAY_MEMBERS = "array_members"
    ARRAY_HEADER = "array_header"
    ARRAY_SHAPE = "array_shape"
    ARRAY_TYPE = "array_type"
    ARRAY_LENGTH = "array_length"
    IDX_MEMBERS = "idx_members"
    IDX_MAGIC = "idx_magic"
    IDX_SHAPE = "idx_shape"
    IDX_LENGTH = "idx_length"
    COUNTS_DIFFER = "counts_differ"
    LABEL_RANGE = "label_range"
    SUBJECTS_ABSENT = "subjects_absent"
    SUBJECTS_UNEXPECTED = "subjects_unexpected"
    SUBJECTS_TOO_MANY = "subjects_too_many"
    SUBJECT_BLANK = "subject_blank"
    SUBJECT_TYPE = "subject_type"
    TOO_COSTLY = "too_costly"
    STORAGE = "storage"
    INTERNAL = "internal"


class Refused(Exception):
    """The upload is rejected. Has no message text, because an exception must not carry private content."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault.value)
        self.fault = fault
