"""Provenance of synthetic images: the IPTC mark of generated media, and a signature that binds pixels to a release.

The installation's key, which also signs receipts, signs a statement on the release and the pixels. A reader computes
the statement again from the pixels, so a file contains only the release's id, the public key and the signature. Each
image can be verified alone and offline. PNG files contain the signature in a text chunk; an npz contains
`provenance.json`, whose statement lists the SHA-256 of each array's file.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from PIL.Image import Image

SOURCE_TYPE = "http://cv.iptc.org/newscodes/digitalsourcetype/trainedAlgorithmicMedia"
XMP_KEYWORD, SIGNATURE_KEYWORD = "XML:com.adobe.xmp", "obscura"  # of a PNG's text chunks
PROVENANCE_FILE = "provenance.json"  # in an npz
XMP = (
    '<?xpacket begin="\ufeff" id="W5M0MpCehiHzreSzNTczkc9d"?><x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:RDF '
    'xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#"><rdf:Description rdf:about="" '
    'xmlns:Iptc4xmpExt="http://iptc.org/std/Iptc4xmpExt/2008-02-29/" '
    f'Iptc4xmpExt:DigitalSourceType="{SOURCE_TYPE}"/></rdf:RDF></x:xmpmeta><?xpacket end="r"?>'
)

Sign = Callable[[Mapping[str, Any]], Mapping[str, Any]]  # `service.audit.signing.SigningKey.sign`
# From best to worst.
Verdict = Literal["valid", "unknown_key", "unsigned", "no_statement", "invalid", "unreadable"]


def content_of(image: Image) -> dict[str, Any]:
    """Return the part of a statement that identifies the pixels of an image."""
    pixels = hashlib.sha256(image.tobytes()).hexdigest()
    return {"mode": image.mode, "width": image.width, "height": image.height, "pixels_sha256": pixels}


def mark(release_id: str, content: Mapping[str, Any] | None = None, sign: Sign | None = None) -> dict[str, str]:
    """Return the JSON object that names the release, and also its key and signature if `sign` is given."""
    if sign is None:
        return {"release_id": release_id}
    signed = sign(_statement(release_id, content))
    return {"release_id": release_id, "public_key": signed["public_key"], "signature": signed["signature"]}


def encode_png(image: Image, signature: Mapping[str, str] | None = None) -> bytes:
    """Return an image as PNG with the IPTC mark, and with the result of `mark` if given."""
    from PIL.PngImagePlugin import PngInfo  # the web process imports this file, but no decoder

    texts, buffer = PngInfo(), io.BytesIO()
    texts.add_itxt(XMP_KEYWORD, XMP)
    if signature is not None:
        texts.add_text(SIGNATURE_KEYWORD, json.dumps(signature))
    image.save(buffer, format="PNG", compress_level=6, pnginfo=texts)
    return buffer.getvalue()


def verify(signature: object, content: Mapping[str, Any], key_id: str | None) -> tuple[Verdict, str | None, str | None]:
    """Check a mark against content; return the verdict, the stated release and the fingerprint of the stated key.

    Args:
        signature: parsed JSON from an untrusted file.
        key_id: fingerprint (SHA-256 of the public key) of the installation's key; None if unknown.
    """
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    if not isinstance(signature, dict) or not isinstance(signature.get("release_id"), str):
        return "no_statement", None, None
    release_id, stated = signature["release_id"][:64], None
    if "signature" not in signature:
        return "unsigned", release_id, None
    try:
        public = bytes.fromhex(signature["public_key"])
        stated = hashlib.sha256(public).hexdigest()
        statement = {**_statement(signature["release_id"], content), "key_id": stated}
        text = json.dumps(statement, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
        Ed25519PublicKey.from_public_bytes(public).verify(bytes.fromhex(signature["signature"]), text.encode("ascii"))
    except (InvalidSignature, KeyError, TypeError, ValueError):
        return "invalid", release_id, stated
    return ("valid" if stated == key_id else "unknown_key"), release_id, stated


def _statement(release_id: str, content: Mapping[str, Any] | None) -> dict[str, Any]:
    format = {"format": "obscura synthetic images", "version": 1, "digital_source_type": SOURCE_TYPE}
    return {**format, "release_id": release_id, "content": content}
