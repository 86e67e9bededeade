"""The files of a release, by the names under which they may be downloaded."""

CARD_FILE = "privacy_card.json"  # in every release
# What a training hands over.
DOWNLOADS = (
    "generator.safetensors",
    "generator.json",
    "classifier.safetensors",
    "classifier.json",
    "extractor.safetensors",
    "histogram.json",
    CARD_FILE,
)
# What goes with a generator and is made when it is downloaded; see `service.weights`.
MODEL_CARD_FILE, LOADER_FILE = "README.md", "load_generator.py"
MADE = (MODEL_CARD_FILE, LOADER_FILE)
