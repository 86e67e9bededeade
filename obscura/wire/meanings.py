"""Classify folder names: a person, a part of a dataset such as `train`, or a class. Pure functions over texts.

A person's name must not become a public class name without asking the owner, and an ordinary word must not cause a
question. So these rules match forms (dates, long numbers, numbered words such as `patient12`, DICOM and register ids)
and unambiguous common given names.
"""

from __future__ import annotations

import itertools
import re
import unicodedata
from collections.abc import Iterable, Sequence

LONG_NUMBER_DIGITS = 5  # postal codes, case numbers and dates have at least this many; sizes and degrees have fewer
BARE_NUMBERS_MAX = 20  # folders 0 to 20 with few images each may be classes; more folders are probably people
_WNID = re.compile(r"n\d{8}(?:[-_ ][^\W\d_].*)?")  # ImageNet's class ids
_YEAR = r"(?:18|19|20)\d\d"
_MONTH, _DAY = r"(?:0?[1-9]|1[0-2])", r"(?:0?[1-9]|[12]\d|3[01])"
_MONTH_NAME = r"(?:jan|feb|mar|apr|may|mai|jun|jul|aug|sep|oct|okt|nov|dec|dez)[a-z]*"
_DATES = tuple(
    re.compile(rf"(?<!\d){date}(?!\d)", re.IGNORECASE)
    for date in (
        rf"{_YEAR}(0[1-9]|1[0-2])(0[1-9]|[12]\d|3[01])",
        rf"(0[1-9]|[12]\d|3[01])(0[1-9]|1[0-2]){_YEAR}",
        rf"{_YEAR}[-_. ]{_MONTH}[-_. ]{_DAY}",
        rf"{_DAY}[-_. ]{_MONTH}[-_. ]{_YEAR}",
        rf"{_MONTH}[-_. ]{_DAY}[-_. ]{_YEAR}",
        rf"{_DAY}[-_. ]{_MONTH}[-_. ]\d\d",
        rf"{_MONTH}[-_. ]{_DAY}[-_. ]\d\d",
        rf"\d\d[-_. ]{_MONTH}[-_. ]{_DAY}",
        rf"{_YEAR}[-_.](?:0[1-9]|1[0-2])",
        rf"{_DAY}[-_., ]*{_MONTH_NAME}[-_., ]*{_YEAR}",
        rf"{_MONTH_NAME}[-_., ]*{_DAY}[-_., ]+{_YEAR}",
        rf"{_YEAR}[-_., ]*{_MONTH_NAME}[-_., ]*\d\d",
    )
)
# Words for a person. Followed by a number, they name a person anywhere in a name: sub-04_ses-01, AD_patient_3_left.
_PERSON = (
    r"(?:patient(?:e|in|s)?|pat|pa[cz]iente?s?|пациент|hasta|pid|subjects?|subj|sub|sujeto?|persona?|pers|participante?"
    r"|proband(?:in)?|volunteer|donor|donneur|mrn|individual|respondent|client|user|student|employee|member|infant|baby"
    r"|neonate|newborn|child|twin|athlete|driver|speaker|actor|anonymous|anon|患者|病人|受试者|被试|パシエント)"
)
_PERSON_NUMBER = re.compile(
    rf"(?<![^\W\d_]){_PERSON}[-_ #.:(\[]*(?:(?:no|nr|num|number|id|left|right)[-_ #.:]*)?"
    r"(?:\d+|[a-z]{1,8}\d+)(?![^\W\d_]{2}| ?[mcµ]m\b)"
    rf"|{_PERSON}[-_ ](?:[a-z]|[ivx]+|one|two|three|four|five|six|seven|eight|nine|ten)$",
    re.IGNORECASE,
)
_NUMBERED = re.compile(
    r"(?:case|record|ssn|nhs|id|uid|pseudonym)[-_ #.(\[]*(?:(?:no|nr|number)[-_ #.]*)?\d+[a-z]?(?:[-_ .)\]].*)?"
    r"|id[-_ #.]+(?=[a-z]*\d)[a-z\d]{4,}"
    r"|(?!(?-i:pT[0-4]))(?:pt|vp|p|s(?=\D*\d\d))[-_ #.]*\d+[a-z]?"
    r"(?:[-_ .](?:[lr]|(?:left|right|o[dsu]|pre|post)\b.*|\w?\d+))?"
    r"|[mfw][-_ ]?\d{1,3} ?(?:yo?|yrs?|years?)"
    r"|\d{2,}[-_ ](?:left|right|[lr]e?|o[dsu])"  # an eye, a breast, a knee
    r"|(?-i:[A-Z]\.?[- ]?[A-Z]\.?)[-_ ]?(?:18|19|20)\d\d|(?-i:[A-Z]\.[- ]?[A-Z]\.)[-_ ]?\d.*",  # initials, birth year
    re.IGNORECASE,
)
# Parts of a path that identify the person whose images it contains. A word of one letter, as in p12, is not enough.
_OWNER = re.compile(
    r"(?:patient|pat|pid|subject|subj|sub|person|participant|proband|volunteer|donor|mrn)[-_ #.]*\d+[a-z]?",
    re.IGNORECASE,
)
# Words in file names that distinguish the images of one person: sides, views, times, slices and frames.
_SIDE = re.compile(
    r"left|right|[lr]|od|os|ou|[lr]e|[lr]t|links|rechts|gauche|droite|izq(?:uierd[ao])?|der(?:ech[ao])?|[lr]?cc|[lr]?mlo"
    r"|ap|pa|lat|lateral|frontal|axial|coronal|sagittal|t1(?:w|c|ce|gd)?|t2w?|flair|dwi|adc|pre|post|before|after"
    r"|baseline|follow-?up",
    re.IGNORECASE,
)
_SLICE = re.compile(r"(?:slices?|frames?|fr)(\d*)", re.IGNORECASE)
_COUNTER = re.compile(r"[a-z]{0,5}\d{1,4}", re.IGNORECASE)
_BETWEEN = re.compile(r"[-_ .]+|(?<=\d)(?=(?:left|right|o[ds]|[lr])$)", re.IGNORECASE)
_MARKS = re.compile(
    r"\^|@|,\s*\w\.?$|\b(?:mr|mrs|ms|herr|frau|mme|monsieur|sr|sra)\b\.?[ _-]|\bdr\. "
    r"|^(?-i:(?:Dr|Prof|[A-Z]\.) ?[A-Z][a-z]+$)",  # but not DR 2 (a disease) or E. coli
    re.IGNORECASE,
)
# Identifiers that machines and registers assign: the whole name, or one word in it.
_UID = re.compile(
    r"(?<![\w.])[0-2](?:\.\d+){3,}|(?<![0-9a-f])[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}"
    r"|(?<![^\W_])(?=[a-f]*\d)(?=\d*[a-f])[0-9a-f]{8,}(?![^\W_])"
    r"|(?<![^\W_])(?=[a-z0-9]{8})(?:[a-z]+\d+){3,}[a-z]*(?![^\W_])|(?<![^\W_])(?=[a-z0-9]{8})(?:\d+[a-z]+){3,}\d*(?![^\W_])"
    r"|(?<![^\W_])(?=[A-Z0-9]{12})(?-i:[A-Z]+\d+[A-Z]+\d+[A-Z]*)(?![^\W_])|^tcga-\w\w-\w{4}|(?<!\d)\d{2,}[-_](?-i:[A-Z]{1,3})[-_]\d{3,}",
    re.IGNORECASE,
)
# Words whose number is a grade, a measurement or a list position, and identifies no person.
_SCALE = re.compile(
    r"(?:class|classes|grade|stage|level|type|kind|category|cat|label|score|degree|cluster|group|phase|tier|rank|rating|step"
    r"|digit|number|age|aged|day|week|month|year|h|hr|hour|min|minute|cycle|zone|ward|floor|bin|quantile|quartile|decile|topic|task"
    r"|position|pose|sector|segment|state|model|version|v|rads|(?:bi|pi|ti|li)rads|kl|gleason|isup|nyha|asa|figo|tnm|cd|iso"
    r"|size|[mckµun]?m|[mk]?g|ml|x|y|yo|yrs?|percent|k?hz|kvp?|euro|dollar|cent|rupee|yuan|yen|won|usd|eur|inr)s?",
    re.IGNORECASE,
)
# Words for one item among many: a number beside them identifies the item.
_INSTANCE = re.compile(
    r"(?:sample|specimen|slide|image|img|im|scan|exam|examination|study|visit|encounter|admission|accession|acc|biopsy|core"
    r"|block|roi|wsi|mouse|mice|rat|animal|monkey|eye|nodule|lesion|polyp|video|clip|recording|family|volume|vol)s?",
    re.IGNORECASE,
)
_NUMBER = re.compile(r"\d+(?:\.\d{1,2}(?!\d))?")
_LETTER_AFTER = re.compile(r"#[a-z](?![^\W_])")  # 4a and 4b
_IS_SPLIT = re.compile(
    r"(?:train|training|trainset|test|testing|testset|val|valid|validation|dev|eval|evaluation|holdout|(?:un)?labell?ed"
    r"|(?:single[-_ ])?pred(?:iction)?s?|inference)"
    r"(?:[-_ ]?(?:set|data|images|imgs|masks|png|jpe?g|dicom|small|full|resized|\d+|[ab](?![a-z])))*",
    re.IGNORECASE,
)
# Words in the names of mask folders and files. Those of `_MASK_ALONE` mark a mask even without the image's name.
_MASK_WORDS = frozenset([
    "mask", "masks", "seg", "segs", "gt", "gts", "label", "labels", "annotation", "annotations", "anno", "annot", "ann",
    "targets",
])  # fmt: skip
_MASK_ALONE = frozenset(
    ["groundtruth", "groundtruths", "segmentation", "segmentations", "segmap", "labelmap", "labelmaps"]
)
_PICTURE_WORDS = frozenset(
    ["image", "images", "img", "imgs", "input", "inputs", "picture", "pictures", "photo", "photos", "raw", "original"]
)
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+|[^\W\d_a-zA-Z]+")
_IS_KIND = re.compile(
    r"(?:images?|labels?|masks?)(?:t[rs]|val)"
    r"|images?|inputs?|imgs?|pictures?|pics|photos?|masks?|annotations?|labels?|segmentations?|ground[-_ ]?truths?|gts?"
    r"|bbox(es)?|data|dataset|files?|raw|original|originals|processed|preprocessed|augmented|all|dicom|dcm|png|jpe?g|tiff?|bmp",
    re.IGNORECASE,
)
_IS_NUMBERED_PART = re.compile(
    r"(?:fold|split|part|batch|chunk|shard|series|study|studies|session|visit|scan|view|slice|frame|site)"
    r"[-_ ]?(?:\d*|[a-h])"
    r"|(?:site|cent(?:er|re)|hospital|clinic|scanner|vendor|device)[-_ ]?(?:\d+|[a-z])",
    re.IGNORECASE,
)
_IS_UNNAMED = re.compile(  # default names of new and of copied folders
    r"(?:new|neuer|nouveau|nueva|untitled|unbenannter?)[-_ ](?:folder|ordner|dossier|carpeta)[-_ (]*\d*\)?"
    r"|(?:untitled|unnamed)[-_ (]*\d*\)?|.*[-_ ]\(?(?:copy|kopie|copie|copia)[-_ (]*\d*\)?"
    r"|(?:copy|kopie|copie|copia)[-_ ](?:of|von|de)\b.*",
    re.IGNORECASE,
)
_IS_YEAR = re.compile(r"(?:18|19|20)\d\d")
_PARTS = (_IS_NUMBERED_PART, _IS_YEAR, _IS_UNNAMED)
_GIVEN_NAMES = frozenset([
    "aaron", "abdul", "abigail", "adam", "adrian", "agnes", "ahmad", "ahmed", "aisha", "akira", "alan", "albert",
    "alejandro", "alexander", "alexandra", "alfred", "ali", "alice", "alicia", "alina", "amanda", "amelia", "amir",
    "ana", "anders", "andrea", "andreas", "andrew", "angela", "anita", "anja", "anna", "anne", "annette", "anthony",
    "antonio", "arthur", "astrid", "barbara", "bart", "beatrice", "benjamin", "bernard", "bernd", "bettina",
    "birgit", "bjorn", "boris", "brandon", "brenda", "brian", "bruno", "carl", "carla", "carlos", "carol",
    "caroline", "catherine", "cecilia", "charles", "charlotte", "chen", "chiara", "christian", "christina",
    "christine", "christoph", "christopher", "claire", "clara", "claudia", "claus", "daniel", "daniela", "david",
    "deborah", "denise", "dennis", "diego", "dieter", "dietmar", "dmitri", "dominik", "donald", "dorothea", "edith",
    "eduardo", "edward", "elena", "elisabeth", "elizabeth", "ella", "elsa", "emil", "emily", "emma", "enrique",
    "eric", "erika", "ernst", "esther", "eugen", "eva", "evelyn", "fabian", "fatima", "felix", "ferdinand",
    "fernando", "florian", "francesca", "francesco", "franz", "frederick", "friedrich", "fritz", "gabriel",
    "gabriele", "georg", "george", "gerald", "gerhard", "gertrud", "giovanni", "gisela", "giulia", "giuseppe",
    "gloria", "gregory", "guido", "guillaume", "gunther", "gustav", "hannah", "hans", "harald", "harold", "heike",
    "heinrich", "heinz", "helen", "helena", "helga", "helmut", "henry", "herbert", "hermann", "hiroshi", "horst",
    "hugo", "ibrahim", "igor", "ines", "ingrid", "irene", "irina", "isabel", "isabella", "ivan", "jacob",
    "jacqueline", "jacques", "jakob", "james", "jan", "jane", "janet", "jason", "javier", "jennifer", "jens",
    "jessica", "joachim", "joan", "joanna", "johan", "johann", "johannes", "john", "jonas", "jonathan", "jorge",
    "jose", "josef", "joseph", "joshua", "juan", "judith", "julia", "julian", "julie", "jurgen", "justin", "karen",
    "karin", "karl", "katharina", "katherine", "kathleen", "katja", "keiko", "kenneth", "kevin", "khalid", "klaus",
    "konrad", "kristin", "kumar", "kurt", "larry", "lars", "laura", "lauren", "leila", "lena", "leonard", "lina",
    "linda", "lisa", "lorenzo", "louis", "louise", "lucas", "lucia", "ludwig", "luis", "luisa", "lukas",
    "magdalena", "manfred", "manuel", "marco", "margaret", "margarete", "maria", "marie", "marina", "mario",
    "marion", "markus", "martha", "martin", "martina", "matthew", "matthias", "maximilian", "megan", "mehmet",
    "melanie", "melissa", "michael", "michaela", "michel", "michelle", "miguel", "mikhail", "mohamed", "mohammad",
    "mohammed", "monika", "muhammad", "mustafa", "nancy", "natalia", "natalie", "nathalie", "nathan", "nicholas",
    "nicolas", "nicole", "nils", "nina", "norbert", "olaf", "olga", "oliver", "olivia", "omar", "otto", "pablo",
    "pamela", "patricia", "patrick", "paul", "paula", "pedro", "peter", "petra", "philip", "philipp", "pierre",
    "priya", "rachel", "rafael", "rainer", "raj", "ralf", "ramon", "rebecca", "reinhard", "renate", "ricardo",
    "richard", "robert", "roberto", "roland", "rolf", "rosemarie", "rudolf", "ruth", "sabine", "sakura", "salma",
    "samantha", "samuel", "sandra", "sara", "sarah", "satoshi", "scott", "sebastian", "sergei", "sharon", "sigrid",
    "silvia", "simon", "simone", "sofia", "sonja", "sophia", "sophie", "stefan", "stefanie", "stephanie", "stephen",
    "steven", "susan", "susanne", "svetlana", "sven", "sylvia", "takashi", "tanja", "tatiana", "teresa", "theodor",
    "theresa", "thomas", "thorsten", "timothy", "tobias", "ulrich", "ulrike", "ursula", "ute", "vanessa", "vera",
    "veronica", "victor", "viktor", "vincent", "vladimir", "waltraud", "walter", "wei", "werner", "wilhelm",
    "william", "wolfgang", "xavier", "yasmin", "yolanda", "yuki", "yusuf", "yvonne", "zhang", "zoe",
])  # fmt: skip


def why_personal(name: str) -> str | None:
    """Return the reason why a name looks personal, such as "a date" or "a given name"; None if it does not."""
    text = unicodedata.normalize("NFC", name)
    if _WNID.fullmatch(text):
        return None
    if any(date.search(text) for date in _DATES):
        return "a date"
    if _UID.search(text):
        return "a unique identifier"
    if _MARKS.search(text):
        return "a mark used in personal names"
    if _PERSON_NUMBER.search(text.strip()) or _NUMBERED.fullmatch(text.strip()):
        return "a person's number"
    if re.search(rf"\d{{{LONG_NUMBER_DIGITS},}}", text):
        return "a long number"
    plain = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode()
    words = re.findall(r"[^\W\d_]+", re.sub(r"(?<=[a-z])(?=[A-Z])", " ", plain))
    # With more than three other words, a given name is probably part of another name.
    named = len(words) <= 4 and any(word.casefold() in _GIVEN_NAMES for word in words)
    return "a given name" if named else None


def identifiers_in(names: Iterable[str], *, few: bool) -> list[str]:
    """Return the names that look like ids of people or records, not like classes.

    Compares names that differ only in numbers. Grades, sizes and consecutive numbers are classes: `grade_1` to
    `grade_5`, `class_000` to `class_009`. Padded or long numbers, numbers with gaps and several numbers in a name are
    ids: `LIDC-IDRI-0001`, `OAS1_0002_MR1`, `sample17`.

    Args:
        names: All class names.
        few: True if most classes have few images.
    """
    series: dict[str, list[str]] = {}
    for name in sorted(name for name in set(names) if not _WNID.fullmatch(name)):
        series.setdefault(_LETTER_AFTER.sub("#", _NUMBER.sub("#", name.casefold())), []).append(name)
    return [
        name for form, alike in series.items() if "#" in form and _are_identifiers(form, alike, few) for name in alike
    ]


def is_scale(names: Sequence[str]) -> bool:
    """Return whether all names are numbers, or numbers on one scale: `class_000`, `class_001`, ..."""
    forms = {_NUMBER.sub("#", name.casefold()) for name in names}
    words = re.fullmatch(r"([^\W\d_]*)[^\w]*_*#", next(iter(forms))) if len(forms) == 1 else None
    return words is not None and (not words[1] or _SCALE.fullmatch(words[1]) is not None)


def _are_identifiers(form: str, alike: Sequence[str], few: bool) -> bool:
    """Return whether names that differ only in their numbers are ids of people or records."""
    if form == "#":  # another rule checks whether bare numbers are consecutive
        return any(re.match(r"0\d\d", name) for name in alike) or (few and len(alike) > BARE_NUMBERS_MAX)
    columns = zip(*map(_NUMBER.findall, alike), strict=True)
    around = form.split("#")
    varying = []
    for place, values in enumerate(columns):
        before = re.search(r"([^\W\d_]*)[^\w]*_*$", around[place])
        after = re.match(r"[^\w]*_*([^\W\d_]*)", around[place + 1])
        words = [found[1] for found in (before, after) if found is not None]
        if any(map(_SCALE.fullmatch, words)) or all(map(_IS_YEAR.fullmatch, values)):
            continue
        leads = place == 0 and not around[0] and len(alike) == 1  # 001.Albatross, 002.ak47
        leads = leads and (len(words[-1]) > 2 or around[1].startswith("."))
        if not leads and any(re.match(r"0\d" if few and words[0] else r"0\d\d", value) for value in values):
            return True
        if len(set(values)) > 1:
            if _INSTANCE.fullmatch(words[0]):
                return True
            varying.append(values)
    if len(varying) == 2:
        rows = sorted(zip(*(map(float, values) for values in varying), strict=True))
        follow = all(0 <= after[0] - before[1] <= 1 for before, after in itertools.pairwise(rows))
        if (follow and all(low < high for low, high in rows)) or all(low == high for low, high in rows):
            return False  # adjacent ranges (20-29, 30-39) or sizes (16x16)
    several = len(varying) > 1 and any(float(value) >= 10 for values in varying for value in values)
    return several or any(_have_gaps(values, few) for values in varying)


def _have_gaps(values: Sequence[str], few: bool) -> bool:
    """Return whether numbers are long, or whole numbers are missing between the smallest and the largest.

    False for measurements (decimals, or multiples of five) and for few or small numbers.
    """
    if any("." in value for value in values):
        return False
    numbers = sorted(set(map(int, values)))
    if all(number % 5 == 0 for number in numbers):
        return False
    if min(map(len, values)) >= LONG_NUMBER_DIGITS - 1:
        return True
    at_least = (2 if few else 5) if numbers[-1] >= 100 else (3 if few else 8)
    return len(numbers) >= at_least and numbers[-1] >= 10 and numbers[-1] - numbers[0] >= len(numbers)


def is_split(name: str) -> bool:
    """Return whether a folder name denotes a dataset part: train, Testing, val2017."""
    return _IS_SPLIT.fullmatch(name) is not None


def is_part(name: str) -> bool:
    """Return whether a folder name denotes a part, file type, copy or year instead of a class: train, masks."""
    return is_split(name) or is_kind(name) or any(form.fullmatch(name) for form in _PARTS)


def is_kind(name: str) -> bool:
    """Return whether a folder name denotes a file type: images, masks."""
    return _IS_KIND.fullmatch(name) is not None


def masks_among(names: Iterable[str]) -> list[str]:
    """Return the folders or files that are masks, such as `labelsTr` beside `imagesTr`, or `b1_mask` beside `b1`.

    Args:
        names: All folders, or all file names without suffixes, of one folder.
    """
    masks, others = dict[str, tuple[str, ...]](), set[tuple[str, ...]]()
    for name in names:
        text = re.sub(
            r"(ground|seg|label)[-_ ]?(truth|map)",
            lambda found: (found[1] + found[2]).lower(),
            name,
            flags=re.IGNORECASE,
        )
        words = [word.casefold() for word in _WORD.findall(text)]
        picture = _picture_of(words)
        if picture is not None:
            masks[name] = picture
        else:
            plain = [word for word in words if word not in _PICTURE_WORDS]
            others |= {tuple(plain), *([("",)] if len(plain) < len(words) else [])}
    begun = {other[:length] for other in others for length in range(len(other) + 1)} if masks else set()
    return [name for name, picture in masks.items() if picture in begun]


def _picture_of(words: Sequence[str]) -> tuple[str, ...] | None:
    """Return the words in the name of the image that a mask belongs to; `words` are those in the mask's name.

    Returns None if `words` do not name a mask, and () if the mask may belong to any image. Returns ("",) if it belongs
    to images with a general name such as `image`.
    """
    numbered = len(words) > 1 and (words[-1].isdecimal() or words[-1] in ("tr", "ts", "val"))
    for place in (-1, 0, *([-2] if numbered else [])):
        word = words[place] if words else ""
        if word in _MASK_ALONE:
            return ()
        if word in _MASK_WORDS:
            return tuple(words[:place] if place < 0 else words[1:]) or ("",)
    return None


def owner_in(path: str) -> str | None:
    """Return the folder that identifies a person, such as patient00001 in `train/patient00001/view1.png`; or None."""
    folders = path.replace("\\", "/").split("/")[:-1]
    return next((part for part in folders if _OWNER.fullmatch(part.strip())), None)


def persons_in_file_names(names: Sequence[str], *, classes: int = 1) -> tuple[str, str] | None:
    """Return two file names that seem to show the same person; None if there is no such pattern.

    Recognises a shared word (person1_virus_1, person1_virus_2), a distinguishing suffix (10_left and 10_right,
    scan3_slice_01 and scan3_slice_02), and a number with a counter (00000013_005).

    Args:
        names: Paths of images.
        classes: Number of classes. A shared word may also be the name of a class (grade1_001).
    """
    signs: dict[bool, dict[str, dict[str, str]]] = {True: {}, False: {}}  # by person: files by distinguishing part
    for name in names:
        strong, person, mark = _person_of(name)
        if person:
            signs[strong].setdefault(person.casefold(), {}).setdefault(mark.casefold(), name)
    for strong, persons in signs.items():
        several = [list(files.values()) for files in persons.values() if len(files) > 1]
        enough = sum(map(len, several)) >= max(4, len(names) // (10 if strong else 2))
        if enough and (strong or len(persons) > classes):
            return several[0][0], several[0][1]
    return None


def _person_of(path: str) -> tuple[bool, str, str]:
    """Return (strong, person, mark): the person in a path, and what differs between that person's files.

    `person` is "" if the path shows none. `strong` is True for a person's id, a slice or a side; False for a counter.
    """
    *folders, name = path.split("/")
    owner = _OWNER.match(name)
    if owner:
        return True, owner[0], name
    words = list(filter(None, _BETWEEN.split(re.sub(r"\.\w+$", "", name))))
    sides = [word for word in (*folders[-1:], *words) if _SIDE.fullmatch(word)]
    slices = next((at for at, word in enumerate(words) if _SLICE.fullmatch(word)), None)
    if slices is not None and re.search(r"\d", "".join(words[slices:])):
        return True, "_".join(words[:slices]) or "/".join(folders) or "slices", name
    rest = [word for word in words if not _SIDE.fullmatch(word)]
    if sides:
        return True, "_".join(rest) or "/".join(folders), "_".join(sides)
    counted = len(rest) > 1 and _COUNTER.fullmatch(rest[-1]) and re.search(r"\d", "".join(rest[:-1]))
    return (False, "_".join(rest[:-1]), name) if counted else (False, "", "")
