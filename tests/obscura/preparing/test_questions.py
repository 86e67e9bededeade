"""Names that identify people, records or parts of a collection are asked about; names of classes are not."""

import pytest

from obscura.preparing.questions import ask_about_classes, classes_flag, look_alike
from obscura.wire.meanings import is_part, masks_among, owner_in, persons_in_file_names, why_personal
from tests.obscura.preparing.conftest import flags_asked

PEOPLE = [
    "SURNAME_GIVEN_19610423", "Meier 23.04.1961", "1961-04-23", "04231961_x", "12MAR1980", "A-1980-Mar-12",
    "DOE^JANE", "sub-01", "subject 4",
    "Meier, Hans", "Meier, H.", "jane@example.org", "Mr Smith", "Frau Meier", "patient12", "Patient_007", "pat-3",
    "case_17", "MRN0045", "ID123", "P0", "S01", "person1", "proband 9", "00012345", "x_998877_y", "john smith",
    "Anna", "MariaLopez", "1.2.840.113619.2.1", "3f2504e0-4f89-41d3-9a0c-0305e82c3301", "TCGA-02-0006", "Müller Jürgen",
]  # fmt: skip
THINGS = [
    "normal", "NORMAL", "PNEUMONIA", "cat", "T-shirt/top", "Grade 3", "grade_3", "BIRADS 4", "T1", "M0", "S1", "0", "9",
    "n01440764", "outdoor-man-made", "Golden_Retriever", "No Finding", "with mask", "melanocytic nevi", "stage IIIb",
    "covid-19", "COVID", "H&E", "ward 12", "3:4", "1/2", "b747", "sunflower", "plane12", "patient", "control", "日本",
    "12 leads", "mass, right", "2x2", "H1N1", "8-bit",
]  # fmt: skip
PARTS = [
    "train", "Test", "testing", "val2017", "train_images", "validation", "images", "masks", "annotations", "fold1",
    "split_2", "raw", "2019", "batch-3", "series 4", "study1", "view2", "PNG", "augmented", "test-set", "dev",
]  # fmt: skip


@pytest.mark.parametrize("name", PEOPLE)
def test_names_of_people_are_told(name):
    assert why_personal(name) is not None


@pytest.mark.parametrize("name", THINGS)
def test_words_for_things_are_not_held_up(name):
    assert why_personal(name) is None
    assert not is_part(name)


@pytest.mark.parametrize("name", PARTS)
def test_parts_of_a_collection_are_told(name):
    assert is_part(name)


@pytest.mark.parametrize("folders", [True, False])
@pytest.mark.parametrize("name", PEOPLE[:6])
def test_people_are_asked_about_before_they_are_classes(name, folders):
    counts = {name: 30, "other": 40}
    assert flags_asked(ask_about_classes, counts, folders=folders) == ("--rename-classes classes.csv",)


@pytest.mark.parametrize(
    ("counts", "stated"),
    [
        ({"train": 40, "test": 9}, "test,train"),
        ({"Normal": 40, "normal": 3, "sick": 9}, "Normal,normal,sick"),
        ({"1": 40, "1.0": 3, "2": 9}, "1,1.0,2"),
        ({f"site {letter}": 3 for letter in "ABCDEFGHIJ"}, ",".join(f"site {letter}" for letter in "ABCDEFGHIJ")),
    ],
)
def test_what_may_be_no_class_is_asked_with_the_names_to_state(counts, stated):
    assert flags_asked(ask_about_classes, counts, folders=True) == (f"--classes {stated}",)


def test_labels_that_somebody_wrote_down_may_be_called_like_parts():
    ask_about_classes({"train": 30, "car": 40}, folders=False)
    ask_about_classes({"train": 30}, folders=False)


def test_a_long_list_goes_into_a_file():
    assert classes_flag([f"kind {number}" for number in range(40)]) == "--classes classes.txt"
    assert classes_flag(["a, b", "c"]) == "--classes classes.txt"


@pytest.mark.parametrize(
    "group",
    [["1", "1.0"], ["P1", "p1"], ["P1", " P1"], ["Zoë", "Zoe\u0308"], ["７", "7"], ["007", "7"], ["a  b", "A b"]],
)
def test_texts_that_people_read_as_one(group):
    assert look_alike(["other", *group]) == [group]
    assert look_alike(["P1", "P10", "1", "10", "1.5", "15"]) == []


def test_whose_an_image_is_stands_in_its_path():
    assert owner_in("train/patient00001/study1/view1_frontal.jpg") == "patient00001"
    assert owner_in("sub-01/ses-02/anat.png") == "sub-01"
    assert owner_in("train/normal/patient1.jpg") is None


@pytest.mark.parametrize(
    ("form", "many"),
    [
        ("a/{side}_{p:04}.jpeg", 2),
        ("a/P{p}{letter}.png", 2),
        ("a/{p}_{side}_cc.png", 2),
        ("a/x{p}_T1.png a/x{p}_FLAIR.png", 1),
        ("{side}/{p}.png", 2),
        ("{p}/{side}.png", 2),
        ("a/brain_slice_{n:03}.png", 3),
        ("a/frame{n:05}.png", 3),
        ("a/{p:08}_{n:03}.png", 3),
    ],
)
def test_files_that_are_named_after_persons_with_several_images(form, many):
    names = [
        name
        for n in range(12)
        for name in form.format(p=n // many, n=n, side=("left", "right")[n % 2], letter="LR"[n % 2]).split(" ")
    ]
    pair = persons_in_file_names(names)
    assert pair[0] != pair[1]
    assert {*pair} <= {*names}


@pytest.mark.parametrize(
    "form", ["person{n}", "{n:03}", "img_{n:03}", "left_{n}", "ISIC_{n:07}", "grade{c}_{n:03}", "x{n}_1"]
)
def test_files_that_are_only_numbered_say_nothing_of_persons(form):
    assert persons_in_file_names([f"a/{form.format(n=n, c=n % 2)}.png" for n in range(12)], classes=2) is None


IDENTIFIERS = {
    # people with a number, and something after or before it
    "bids_labels": ["sub-CON01", "sub-CON02", "sub-PAT07"],
    "bids_guids": ["sub-NDARAA306NT2", "sub-NDARAB055BPR3"],
    "bids_runs": ["sub-01_task-rest_run-1", "sub-01_task-rest_run-2"],
    "patient_views": ["Patient 3 - CC", "Patient 3 - MLO", "Patient 8 - CC", "Patient 8 - MLO"],
    "patient_dates": ["patient12_2019-03-01", "patient14_2020-11-30"],
    "group_then_patient": ["AD_patient_3", "CN_patient_4"],
    "group_then_subject": ["control-subject-12", "case-subject-14"],
    "patient_number_word": ["Patient No. 3", "Patient No. 7"],
    "patient_id_word": ["patient_id_17", "patient_id_23"],
    "patient_letters": ["patient A", "patient B", "patient C"],
    "patient_roman": ["Patient IV", "Patient IX"],
    "spanish": ["paciente_1", "paciente_2"],
    "italian": ["paziente 12", "paziente 13"],
    "german": ["Probandin 4", "Patientin 9"],
    "chinese": ["患者12", "患者13"],
    "volunteers": ["volunteer7_scan1", "volunteer8_scan1"],
    "donors": ["donor-3-liver", "donor-5-liver"],
    "participants": ["P07_left", "P11_right"],
    "participants_padded": ["P0012", "P0345"],
    "participants_by_time": ["P12_t1", "P12_t2", "P14_t1"],
    "cases": ["Case12", "Case13", "Case21"],
    "case_suffix": ["case_00012_a", "case_00013_b"],
    "case_side": ["case_12_left", "case_14_left"],
    "ids": ["ID123_right", "ID124_left"],
    "actors": ["Actor_01", "Actor_02"],
    "children": ["child 3 day 2", "child 4 day 1"],
    "one_among_classes": ["benign", "malignant", "patient_3_left"],
    "knees": ["9001104_L", "9001400_R"],
    "sex_and_age": ["M45y", "F63y"],
    # initials and births
    "initials_and_date": ["JD_1961-04-23", "MK_1958-12-01"],
    "initials_and_short_date": ["AB230461", "CD010158"],
    "dotted_initials": ["A.B. 1972", "C.D. 1980"],
    # identifiers of studies
    "tcga": ["TCGA-02-0006-01A", "TCGA-12-1600-01Z"],
    "lidc_unpadded": ["LIDC-IDRI-1001", "LIDC-IDRI-1012"],
    "lidc_alone": ["LIDC-IDRI-0078", "healthy"],
    "oasis_3": ["OAS30001_MR_d0129", "OAS30002_MR_d0653"],
    "trials": ["NCT01234567", "NCT07654321"],
    "isic": ["ISIC_0024306", "ISIC_0024307"],
    "camera_files": ["IMG_0431", "IMG_0432", "DSC_0012"],
    "lung1": ["LUNG1-001", "LUNG1-417"],
    "cptac": ["C3L-00004", "C3N-00149"],
    "prostatex": ["ProstateX-0001", "ProstateX-0204"],
    "ixi": ["IXI002-Guys-0828", "IXI012-HH-1211"],
    "brats": ["BraTS20_Training_001", "BraTS20_Training_002"],
    "kits": ["case_00000", "case_00001"],
    "mias": ["mdb001", "mdb002", "mdb315"],
    "cbis": ["P_00001_LEFT", "P_00004_RIGHT"],
    "duke": ["Breast_MRI_001", "Breast_MRI_922"],
    "upenn": ["UPENN-GBM-00001", "UPENN-GBM-00630"],
    # numbers of hospitals and machines
    "mr_numbers": ["MR12345", "MR23456"],
    "short_hospital_numbers": ["4471", "8820", "9013"],
    "accessions": ["acc 4411", "acc 4417"],
    "uuids": ["3f2504e0-4f89-41d3-9a0c-0305e82c3301", "9b2d7f7a-5a9d-4d1e-8d5c-0b1c1a7f4d11"],
    "uuids_with_a_word": ["scan_3f2504e0-4f89-41d3-9a0c-0305e82c3301", "normal"],
    "hashes": ["9f86d081884c7d65", "60303ae22b998861"],
    "random_codes": ["K7Q2M9X4", "B1C5D8E2"],
    "ulids": ["01ARZ3NDEKTSV4RRFFQ69G5FAV", "01BX5ZZKBKACTAV9WEVGEMMVRZ"],
    "dicom_uids_with_a_word": ["series 1.3.6.1.4.1.14519.5.2", "series 1.3.6.1.4.1.14519.5.3"],
    # one of many things
    "samples_that_count": ["sample_1", "sample_2", "sample_3"],
    "mice": ["mouse 1", "mouse 2"],
    "nodules": ["nodule-12", "nodule-15"],
    "gaps": ["rosa17", "rosa23", "rosa41", "rosa58"],
    "among_classes": ["normal", "tumor", "ROI_101", "ROI_107"],
    "one_to_forty": [str(number) for number in range(1, 41)],
    "views": ["pers12_front", "pers13_front"],
    "anonymous": ["anonymous_12", "anonymous_15"],
    "number_words": ["subject_one", "subject_two"],
    "russian": ["пациент_1", "пациент_2"],
    "histology": ["H18.1234", "H18.2345"],
    "initials_and_age": ["A.M._67y", "K.L._54y"],
    "nda_guids": ["NDARINV00BD7VDC", "NDARINV00CY2MDM"],
    "recordings": ["S001R04", "S002R04"],
    "brackets": ["patient(1)", "Patient [12]"],
    "case_numbers": ["case no. 12", "case no. 14"],
    "id_codes": ["ID-AX93KD", "ID-QP88ZL"],
    "slides_with_letters": ["slide-12A", "slide-14B"],
    "padded_by_one": ["IDRiD_01", "IDRiD_02"],
    "codes": ["HC01", "PD03", "PD07"],
}
CLASSES = {
    "two_digits": [f"{number:02}" for number in range(12)],
    "birads_with_letters": ["BIRADS 4a", "BIRADS 4b", "BIRADS 4c", "BIRADS 5"],
    "pirads": [f"PI-RADS {number}" for number in range(1, 6)],
    "stages": ["stage I", "stage II", "stage IIIa", "stage IIIb", "stage IV"],
    "numbered_stages": [f"Stage{number}" for number in range(5)],
    "wide_classes": [f"class_{number:04}" for number in range(30)],
    "wordnet": ["n01440764", "n02102040", "n02979186"],
    "wordnet_with_a_word": ["n02085620-Chihuahua", "n02085782-Japanese_spaniel"],
    "levels": ["level1", "level2", "level3"],
    "tumour_sizes": ["T1", "T2", "T3", "T4"],
    "pathological": ["pT1", "pT2", "pT3a", "pT3b"],
    "nodes": ["N0", "N1", "N2"],
    "mri": ["T1", "T1c", "T2"],
    "gleason": ["3+3", "3+4", "4+3", "4+4"],
    "gleason_words": ["Gleason 6", "Gleason 7", "Gleason 8"],
    "kellgren": [f"KL{number}" for number in range(5)],
    "retinopathy": ["0 - no DR", "1 - mild", "2 - moderate", "3 - severe"],
    "nyha": ["NYHA 1", "NYHA 2", "NYHA 3"],
    "markers": ["CD3", "CD4", "CD8", "CD20", "CD68"],
    "ages_with_a_word": ["age_20_30", "age_30_40", "age_40_50"],
    "ages_open": ["under 18", "18-25", "26-40", "over 40"],
    "days": ["day 3", "day 7", "day 14"],
    "weeks": ["week_12", "week_24", "week_36"],
    "magnifications": ["40X", "100X", "200X", "400X"],
    "lengths": ["5mm", "10mm", "22mm"],
    "fields": ["1.5T", "3T"],
    "banknotes": ["10 rupees", "50 rupees", "100 rupees", "500 rupees"],
    "coins": ["1 euro", "2 euro", "1 cent", "2 cent", "5 cent"],
    "shapes": ["2x2", "4x4", "16x16"],
    "aircraft": ["A320", "A330", "A380"],
    "jets": ["Boeing 707", "Boeing 727", "Boeing 777"],
    "birds": ["001.Black_footed_Albatross", "002.Laysan_Albatross", "003.Sooty_Albatross"],
    "objects": ["001.ak47", "002.american-flag", "257.clutter"],
    "flu": ["H1N1", "H3N2", "H5N1"],
    "viruses": ["SARS-CoV-1", "SARS-CoV-2"],
    "patients_and_controls": ["patients", "controls"],
    "patient_states": ["patient with pneumonia", "healthy patient"],
    "clusters": [f"cluster{number}" for number in range(25)],
    "counts_of_people": ["1 person", "2 persons", "3 persons"],
    "persons_in_words": ["person", "person riding bike", "no person"],
    "masks": ["with_mask", "without_mask", "mask_worn_incorrectly"],
    "stroke": ["sub-acute", "acute", "chronic"],
    "sizes": ["sub-5mm", "sub 5 mm", "5-10mm", "over 10mm"],
    "quartiles": ["quartile 1", "quartile 2", "quartile 3", "quartile 4"],
    "dental": ["tooth decay", "healthy", "grade 2 caries"],
    "cars": ["Mazda 3 2012", "Mazda 6 2014"],
    "plants": ["Apple___Black_rot", "Apple___healthy", "Corn_(maize)___healthy"],
    "speed_limits": ["60 km/h", "80 km/h", "100 km/h"],
    "her2": ["HER2 0", "HER2 1+", "HER2 2+", "HER2 3+"],
    "genes": ["p53 wild type", "p53 mutant"],
    "hours": ["24h", "48h", "72h"],
    "stars": ["hotel_4_star", "hotel_5_star"],
    "heart_views": ["4-chamber", "2-chamber"],
    "degrees": ["0deg", "90deg", "180deg"],
    "vertebrae": ["L4-L5", "L5-S1"],
    "named_grades": ["sarcoma_grade1", "sarcoma_grade2"],
    "floods": ["flood 2019", "flood 2021"],
}
FEW, SOME, MANY = 3, 12, 200
ONLY_WITH_FEW = {"padded_by_one", "gaps", "one_to_forty", "among_classes"}  # of many images each, they may be classes
ONLY_WITH_MANY = {"jets"}  # with few images each, these may be records


@pytest.mark.parametrize("kind", IDENTIFIERS)
@pytest.mark.parametrize("images", [FEW, SOME])
def test_identifiers_are_asked_about(kind, images):
    counts = dict.fromkeys(IDENTIFIERS[kind], FEW if kind in ONLY_WITH_FEW else images)
    flag = flags_asked(ask_about_classes, counts, folders=True)[0]
    assert flag.split()[0] in ("--classes", "--rename-classes")


@pytest.mark.parametrize("kind", CLASSES)
@pytest.mark.parametrize("images", [FEW, MANY])
def test_classes_with_numbers_pass(kind, images):
    ask_about_classes(dict.fromkeys(CLASSES[kind], MANY if kind in ONLY_WITH_MANY else images), folders=True)


MASKS = [
    (["Training_Input", "Training_Ground_Truth"], ["Training_Ground_Truth"]),
    (["image", "label"], ["label"]),
    (["inputs", "targets"], ["targets"]),
    (["raw", "gt"], ["gt"]),
    (["train_images", "train_masks"], ["train_masks"]),
    (["images_train", "annotations_train"], ["annotations_train"]),
    (["cells", "cells segmentation"], ["cells segmentation"]),
    (["benign (1)", "benign (1)_mask", "benign (1)_mask_1"], ["benign (1)_mask", "benign (1)_mask_1"]),
    (["001", "mask_001"], ["mask_001"]),
    (["img_001", "mask_001"], ["mask_001"]),
    (["ISIC_0000000", "ISIC_0000000_segmentation"], ["ISIC_0000000_segmentation"]),
    (["BraTS20_001_flair", "BraTS20_001_t1", "BraTS20_001_seg"], ["BraTS20_001_seg"]),
    (["scan1", "scan1-label"], ["scan1-label"]),
    (["with_mask", "without_mask", "mask_worn_incorrectly"], []),
    (["N95 mask", "surgical mask", "no mask"], []),
    (["SEG", "LYM", "MON"], []),
    (["label 1", "label 2"], []),
    (["1_mask", "10"], []),
    (["normal", "sick"], []),
    (["ground", "truth or dare"], []),
    (["BraTS20_001_flair", "BraTS20_002_flair"], []),
]


@pytest.mark.parametrize(("names", "masks"), MASKS)
def test_masks_beside_their_images_are_found(names, masks):
    assert masks_among(names) == masks
    if masks:
        assert flags_asked(ask_about_classes, dict.fromkeys(names, MANY), folders=True)
