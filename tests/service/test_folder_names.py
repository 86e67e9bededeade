"""Class folders: harmless and distinct, and in label order."""

from service.cards import folder_names

NAMES = ("T-shirt/top", "../../etc/passwd", "Ankle boot")


def test_folders_are_harmless_distinct_and_in_label_order():
    assert folder_names(("0", "1", "2")) == ("0", "1", "2")
    assert folder_names(NAMES) == ("0_T-shirt_top", "1_etc_passwd", "2_Ankle_boot")
    assert folder_names(("b", "a")) == ("0_b", "1_a")
    assert folder_names(("Cat", "cat")) == ("0_Cat", "1_cat")
    assert folder_names(("\x00", "日本", "CON")) == ("0_class", "1_class", "2_CON")
    many = folder_names(tuple(f"c{label}" for label in range(12)))
    assert list(many) == sorted(many)
    assert many[10] == "10_c10"
