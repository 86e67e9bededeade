"""What a folder's name may mean: a person, a part of a collection, or a class. Pure functions over texts.

A folder that is named after somebody must not become a public class without a question; a word for a thing must not be
held up by one. So these rules look at form (dates, long numbers, numbered words such as `patient12`, marks of DICOM and
of registers) and at the given names that are common and mean nothing else. Whoever prepares pictures asks by them, and
so does the form of a declaration.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence

LONG_NUMBER_DIGITS = 5  # postal codes, case numbers and dates have as many; sizes and degrees do not
_WNID = re.compile(r"n\d{8}")  # how ImageNet calls its classes
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
_NUMBERED = re.compile(
    r"(?:patient|patients|pat|pt|pid|subject|subj|sub|person|participant|proband|volunteer|donor|individual|case|mrn"
    r"|ssn|nhs|id|uid|record|pseudonym|anon|p|s(?=\D*\d\d))[-_ #.]*\d+[a-z]?|[mfw][-_ ]?\d{1,3} ?(?:yo?|yrs?|years?)",
    re.IGNORECASE,
)
# Words of a path that say whose the pictures below are. One letter is too little for that.
_OWNER = re.compile(
    r"(?:patient|pat|pid|subject|subj|sub|person|participant|proband|volunteer|donor|mrn)[-_ #.]*\d+[a-z]?",
    re.IGNORECASE,
)
# Words in file names that distinguish the pictures of one person: sides, views, times, slices and frames.
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
    r"|^(?-i:(?:Dr|Prof|[A-Z]\.) ?[A-Z][a-z]+$)",  # but neither DR 2, which is a disease, nor E. coli
    re.IGNORECASE,
)
_UID = re.compile(
    r"[0-2](?:\.\d+){3,}|[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}|(?=.*\d)(?=.*[a-f])[0-9a-f]{8,}|(?=.*\d)[0-9a-f]{16,}|tcga-\w\w-\w{4}.*",
    re.IGNORECASE,
)
_IS_SPLIT = re.compile(
    r"(?:train|training|trainset|test|testing|testset|val|valid|validation|dev|eval|evaluation|holdout|(?:un)?labell?ed"
    r"|(?:single[-_ ])?pred(?:iction)?s?|inference)"
    r"(?:[-_ ]?(?:set|data|images|imgs|masks|png|jpe?g|dicom|small|full|resized|\d+|[ab](?![a-z])))*",
    re.IGNORECASE,
)
_IS_KIND = re.compile(
    r"images?|imgs?|pictures?|pics|photos?|masks?|annotations?|labels?|segmentations?|ground[-_ ]?truths?|gts?"
    r"|bbox(es)?|data|dataset|files?|raw|original|originals|processed|preprocessed|augmented|all|dicom|dcm|png|jpe?g|tiff?|bmp",
    re.IGNORECASE,
)
_IS_NUMBERED_PART = re.compile(
    r"(?:fold|split|part|batch|chunk|shard|series|study|studies|session|visit|scan|view|slice|frame|site)"
    r"[-_ ]?(?:\d*|[a-h])"
    r"|(?:site|cent(?:er|re)|hospital|clinic|scanner|vendor|device)[-_ ]?(?:\d+|[a-z])",
    re.IGNORECASE,
)
_IS_UNNAMED = re.compile(  # as systems call what nobody has named, and what was copied
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
    """Say why a name looks like that of one person, or None.

    Returns:
        "a date", "a long number", "a number of a person", "a mark as in the names of persons", "a given name" or
        "a unique identifier".
    """
    text = unicodedata.normalize("NFC", name)
    if _WNID.fullmatch(text):
        return None
    if any(date.search(text) for date in _DATES):
        return "a date"
    if _UID.fullmatch(text):
        return "a unique identifier"
    if _MARKS.search(text):
        return "a mark as in the names of persons"
    if _NUMBERED.fullmatch(text.strip()):
        return "a number of a person"
    if re.search(rf"\d{{{LONG_NUMBER_DIGITS},}}", text):
        return "a long number"
    return "a given name" if _has_given_name(text) else None


def is_split(name: str) -> bool:
    """Whether a folder is called like a part that a data set is divided into: train, Testing, val2017."""
    return _IS_SPLIT.fullmatch(name) is not None


def is_part(name: str) -> bool:
    """Whether a folder is called like a part, a kind of file, a copy or a year, not like a class: train, masks."""
    return is_split(name) or is_kind(name) or any(form.fullmatch(name) for form in _PARTS)


def is_kind(name: str) -> bool:
    """Whether a folder is called like the kind of files that are in it: images, masks."""
    return _IS_KIND.fullmatch(name) is not None


def owner_in(path: str) -> str | None:
    """Return the part of a path that says whose a picture is: of `train/patient00001/study1/view1.png`, patient00001.

    Args:
        path: of a picture, with "/"; its file's name says nothing here.
    """
    folders = path.replace("\\", "/").split("/")[:-1]
    return next((part for part in folders if _OWNER.fullmatch(part.strip())), None)


def persons_in_file_names(names: Sequence[str], *, classes: int = 1) -> tuple[str, str] | None:
    """Return the names of two files that seem to be of one person, where files are named so, or None.

    Persons with several files are known by a word such as person1 (person1_virus_1, person1_virus_2), by what tells
    them apart (10_left and 10_right, scan3_slice_01 and scan3_slice_02), or by a number and a counter (00000013_005).

    Args:
        names: Paths of pictures.
        classes: How many classes there are, after which files may be named as well (grade1_001).
    """
    signs: dict[bool, dict[str, dict[str, str]]] = {True: {}, False: {}}  # by person: files by what tells them apart
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
    """Return (whether it is a strong sign, what a file seems to be named after, what tells it from others), or ""."""
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


def _has_given_name(text: str) -> bool:
    """A given name alone, or with one to three other words beside it; in a longer text it is that of something else."""
    plain = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode()
    words = [word.casefold() for word in re.findall(r"[^\W\d_]+", re.sub(r"(?<=[a-z])(?=[A-Z])", " ", plain))]
    return 1 <= len(words) <= 4 and any(word in _GIVEN_NAMES for word in words)
