"""The messages for rejected uploads: the broken rule, and how to correct the upload.

They depend only on the declaration and the limits, so they cannot reveal a file name, label, position or count.
"""

from __future__ import annotations

from obscura.image_types import SCANS_MAX, names_of
from obscura.wire.uploads import Fault
from service.ingest.request import IngestRequest


def explain(fault: Fault, request: IngestRequest) -> str:
    """Return the message of a fault."""
    limits = request.limits
    size = f"{request.width} x {request.height} pixels (width x height)"
    mode = "grayscale" if request.channels == 1 else "colour"
    shape = ", ".join(["n", *map(str, request.record_shape)])
    if request.subjects_declared is None:
        layout, arrays = "in a class folder, as in class/image.png", "exactly two arrays, 'images' and 'labels'"
        idx_members = "exactly two members named like 'train-images-idx3-ubyte' and 'train-labels-idx1-ubyte'"
    else:
        layout = "in a subject's folder inside a class folder, as in class/subject/image.png"
        arrays = "exactly three arrays, 'images', 'labels' and 'subjects'"
        idx_members = (
            "exactly three members named like 'train-images-idx3-ubyte', 'train-labels-idx1-ubyte' and "
            "'train-subjects-idx1-int'"
        )
    messages = {
        Fault.EMPTY: "The upload holds no images. Send the file itself as the request body.",
        Fault.TOO_LARGE: f"The upload is larger than {limits.upload_bytes_max:,} bytes. Send fewer or smaller images, "
        "or ask the operator to raise the limit.",
        Fault.INCOMPLETE: "The request's body does not have the announced length. Send it again.",
        Fault.ARCHIVE_BROKEN: "The archive is damaged or is not a plain zip file: its directory, its entries and their "
        "checksums must agree, and nothing may precede the first entry. Create it again.",
        Fault.ARCHIVE_ENTRIES: f"The archive has more than {limits.entries_max:,} entries. Send fewer files.",
        Fault.ARCHIVE_SIZE: f"The archive expands to more than is allowed: {limits.entry_bytes_max:,} bytes for a file "
        f"and {limits.decoded_bytes_max:,} bytes in all. Send fewer or smaller images.",
        Fault.ARCHIVE_RATIO: f"The archive expands to more than {limits.ratio_max} times its size, far more than "
        "images do. If it does contain images, create it without compression.",
        Fault.ARCHIVE_DUPLICATE: "Two entries of the archive have the same name. Upper and lower case, and equivalent "
        "Unicode spellings, count as the same. Rename one of the files.",
        Fault.ARCHIVE_OVERLAP: "Entries of the archive overlap. Create it again with an ordinary zip program.",
        Fault.ARCHIVE_PATH: "An entry's name points outside the archive or is not a valid file name. Absolute paths, "
        f"drive letters, '.', '..', control characters and names over {limits.name_bytes_max} bytes are not allowed.",
        Fault.ARCHIVE_SPECIAL: "The archive holds a link, device or other special file. Only folders and files are "
        "accepted; replace links by the files they point to.",
        Fault.ARCHIVE_NESTED: "The archive holds another archive. Unpack it and put its images into class folders.",
        Fault.ARCHIVE_ENCRYPTED: "The archive is encrypted. Create it without a password; the upload itself should "
        "travel over TLS.",
        Fault.ARCHIVE_METHOD: "The archive uses a compression method other than 'stored' and 'deflated'. Create it "
        "again with one of these.",
        Fault.LAYOUT: f"Every file must be {layout}. Remove all other files. Folders that wrap all class folders, "
        "hidden files, and system files such as '__MACOSX' and 'Thumbs.db' are ignored.",
        Fault.CLASS_UNDECLARED: "A class folder's name is not among the declared classes. Folder names must be the "
        f"{len(request.classes)} declared names, letter by letter.",
        Fault.RECORDS_TOO_MANY: f"The upload holds more than {request.records_max:,} records. The guarantee is "
        "computed from the declared number, an upper bound. Declare a new dataset with a larger number.",
        Fault.IMAGE_FORMAT: "A file is not an image in an accepted format. "
        f"{names_of(taken=True, last='and')} are accepted, judged by content, not by name.",
        Fault.IMAGE_PIXELS: f"An image has more than {limits.pixels_max:,} pixels, so it was not decoded. Resize it.",
        Fault.IMAGE_SIZE: f"An image does not have the declared size, {size}. Send fit=crop or fit=pad, so that the "
        "service resizes the images, or resize them yourself: `obscura datasets push` does it with --size.",
        Fault.IMAGE_FRAMES: "An image is animated or has several frames. Send single images; "
        "`obscura datasets push` keeps the first frame.",
        Fault.IMAGE_SCANS: f"A JPEG has more than {SCANS_MAX} scans, each of which covers all pixels again. "
        "Save it again with the default settings of your program.",
        Fault.IMAGE_PARTS: "An image is made of far more segments, chunks or runs than its size explains, or has "
        "several colour profiles. Save it again, without metadata.",
        Fault.IMAGE_MODE: f"An image does not fit the declared mode, {mode}. Use eight bits a channel; for a "
        "grayscale dataset, images must be gray (red, green and blue equal everywhere)."
        if request.fit == "exact"
        else "An image has more than eight bits a channel, or an unusual colour mode. Save it with eight bits a "
        "channel; `obscura datasets push` converts such images, and asks which value is white.",
        Fault.IMAGE_TRANSPARENT: "An image has transparent pixels. Flatten it onto a background first; "
        "`obscura datasets push` lays it on white.",
        Fault.IMAGE_BROKEN: "An image is damaged and cannot be decoded. Replace it, or leave it out.",
        Fault.ARRAY_MEMBERS: f"An .npz upload must hold {arrays}.",
        Fault.ARRAY_HEADER: "An array's header cannot be read. Save plain arrays with numpy.savez (no pickled objects, "
        "no Fortran order).",
        Fault.ARRAY_SHAPE: f"The images must have the declared shape, ({shape}), and the labels the shape (n).",
        Fault.ARRAY_TYPE: "The images must be of type uint8, and the labels must be integers.",
        Fault.ARRAY_LENGTH: "An array holds fewer or more bytes than its header says. Save it again.",
        Fault.IDX_MEMBERS: f"An IDX upload is a zip with {idx_members}, each with or without '.gz'.",
        Fault.IDX_MAGIC: "A member does not begin like an IDX file of its kind (magic 0x00000803 for images, "
        "0x00000801 for labels, 0x00000C01 for subjects).",
        Fault.IDX_SHAPE: f"The IDX images must be {size}, as declared, and the dataset grayscale.",
        Fault.IDX_LENGTH: "An IDX file is truncated, or has bytes after its end.",
        Fault.COUNTS_DIFFER: "The number of labels, or of subject ids, differs from the number of images.",
        Fault.LABEL_RANGE: f"A label is not in 0 ... {len(request.classes) - 1}. A label is the position of its class "
        "in the declared order, counted from 0.",
        Fault.SUBJECTS_ABSENT: "The dataset's account protects all records of a subject together, but this upload "
        "contains no subject ids. Send an .npz with a third array 'subjects', a zip with subject folders in the class "
        "folders (class/subject/image.png), or a third IDX file ('train-subjects-idx1-int').",
        Fault.SUBJECTS_UNEXPECTED: "The upload contains subject ids, but this dataset declares no subjects: it is "
        "public, or its account protects single records. Leave out the ids, or declare the dataset in an account whose "
        "unit is the subject.",
        Fault.SUBJECTS_TOO_MANY: "The upload holds more subjects than were declared"
        + (f": {request.subjects_declared:,}" if request.subjects_declared else "")
        + ". The guarantee is computed from the declared number, an upper bound. Declare a new dataset with a larger "
        "number.",
        Fault.SUBJECT_BLANK: "A record has no subject id. Negative numbers, ids without a letter or digit, and words "
        "such as NA, nan, none or unknown count as missing. Give every record the id of the person or thing that it "
        "shows. Each person needs an id, even with a single record.",
        Fault.SUBJECT_TYPE: "The subject ids must be an array of shape (n) of integers, or of texts or bytes of a "
        f"fixed width of at most {limits.subject_characters_max} characters. Convert a text column of a table with "
        "column.astype('U').",
        Fault.TOO_COSTLY: "Reading the upload took more memory or time than is allowed. Send fewer or smaller images.",
        Fault.STORAGE: "The service could not store the upload. Nothing was changed. Try again later, or ask an admin "
        "of the installation.",
        Fault.INTERNAL: "The service could not read the upload, because of an internal error. Nothing was changed. Try "
        "again later, or ask an admin of the installation.",
    }
    return messages[fault]
