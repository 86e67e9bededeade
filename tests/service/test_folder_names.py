"""Class folders: harmless and distinct, and in label order."""

from service.cards import folder_names

DEVICES = {"con", "prn", "aux", "nul", *(f"{port}{number}" for port in ("com", "lpt") for number in range(10))}
NAMES = ("T-shirt/top", "../../etc/passwd", "Ankle boot")


def test_folders_are_harmless_distinct_and_in_label_order():
    assert folder_names(("0", "1", "2")) == ("0", "1", "2")
    assert folder_names(NAMES) == ("0_T-shirt_top", "1_etc_passwd", "2_Ankle_boot")
    assert folder_names(("b", "a")) == ("0_b", "1_a")
    assert folder_names(("Cat", "cat")) == ("0_Cat", "1_cat")
    assert folder_names(("\x00", "日本", "CON")) == ("0_class", "1_class", "2_CON")
    assert folder_names(("con", "sick")) == ("0_con", "1_sick")
    for device in ("AUX", "com1", "lpt9", "nul", "prn.", "CON "):
        assert folder_names((device, "z"))[0].lower().strip("_ .") not in DEVICES
    assert folder_names(("com", "confusion", "console")) == ("com", "confusion", "console")
    many = folder_names(tuple(f"c{label}" for label in range(12)))
    assert list(many) == sorted(many)
    assert many[10] == "10_c10"
