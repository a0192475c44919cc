"""transformers' side of the tests of Whisper: features, and tiny models with their files, written to whisper.npz.

    pip install torch==2.13.0 transformers==5.23.0 tokenizers safetensors
    python tests/references/make_whisper.py

features/MELS/NAME    the first frames of a recording of whisper_cases.py, and the value of all frames of silence
model/NAME            the files of a folder with random weights, features of one second, teacher-forced logits in the
                      ids of the model, and what `generate` writes
text/NAME             texts, their ids, and what they are decoded to
"""

import json
import os
import sys
import tempfile
from pathlib import Path

os.environ["TRANSFORMERS_VERBOSITY"] = "error"
HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parents[1]), str(HERE.parent)]

import numpy as np
import torch
import transformers
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers, trainers

from references.whisper_cases import RATE, SHOWN, recordings

ARRAYS: dict[str, np.ndarray] = {}
TEXTS = (
    "Good morning, the weather is fine.", " the morning", "Grüße aus Köln", "a  b\tc", "日本 🙂", "<|endoftext|>", "",
    "<|0.00|> <|en|>",
)  # fmt: skip
FILES = (
    "config.json", "generation_config.json", "preprocessor_config.json", "tokenizer.json", "tokenizer_config.json",
    "model.safetensors",
)  # fmt: skip
SIZES = {
    "d_model": 16, "encoder_layers": 2, "decoder_layers": 3, "encoder_attention_heads": 2,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 24, "decoder_ffn_dim": 32, "num_mel_bins": 20,
    "max_source_positions": 50, "max_target_positions": 40,
}  # fmt: skip
MODELS = {"multilingual": True, "english": False, "learned-bfloat16": True}


def features() -> None:
    for mels in (80, 128):
        extract = transformers.WhisperFeatureExtractor(feature_size=mels)
        for name, samples in recordings().items() if mels == 80 else [("chirp", recordings()["chirp"])]:
            found = extract(samples, sampling_rate=RATE, return_tensors="np").input_features[0].T
            assert found.shape == (3000, mels) and np.ptp(found[len(samples) // 160 + 3 :]) == 0
            ARRAYS[f"features/{mels}/{name}"] = found[:SHOWN]
            ARRAYS[f"features/{mels}/{name}/silence"] = found[-1, :1]


def tokenizer() -> transformers.WhisperTokenizer:
    """A byte-level BPE of few merges, with the special tokens of Whisper in their order."""
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trained.train_from_iterator(TEXTS * 3, trainers.BpeTrainer(vocab_size=290, initial_alphabet=alphabet))
    model = json.loads(trained.to_str())["model"]
    vocab = model["vocab"]
    # As in the models of many languages, an empty piece is the last before <|endoftext|>.
    vocab[""] = len(vocab)
    found = transformers.WhisperTokenizer(vocab=vocab, merges=[tuple(pair) for pair in model["merges"]])
    special = ["<|endoftext|>", "<|startoftranscript|>", "<|en|>", "<|de|>", "<|yue|>", "<|translate|>"]
    special += ["<|transcribe|>", "<|startoflm|>", "<|startofprev|>", "<|nospeech|>", "<|notimestamps|>"]
    found.add_tokens([AddedToken(name, special=True, normalized=False) for name in special], special_tokens=True)
    times = [f"<|{step * 0.02:.2f}|>" for step in range(11)]
    found.add_tokens([AddedToken(name, special=False, normalized=False) for name in times])
    return found


def model(name: str, multilingual: bool, folder: Path, seed: int) -> None:
    words = tokenizer()
    ids = words.get_vocab()
    end, start = ids["<|endoftext|>"], ids["<|startoftranscript|>"]
    settings = transformers.WhisperConfig(
        **SIZES, vocab_size=len(words) + 2, pad_token_id=end, bos_token_id=end, eos_token_id=end,
        decoder_start_token_id=start,
    )  # fmt: skip
    net = transformers.WhisperForConditionalGeneration(settings)
    random = np.random.default_rng(seed)
    with torch.no_grad():
        for path, value in net.named_parameters():
            if path.endswith("encoder.embed_positions.weight") and "learned" not in name:
                continue
            drawn = random.normal(size=value.shape)
            narrow = value[0].numel() if value.ndim > 1 else 16
            narrow = narrow / 9 if "decoder.embed_positions" in path or "encoder_attn" in path else narrow
            drawn = 1 + drawn / 4 if "norm" in path and path.endswith("weight") else 1.5 * drawn / np.sqrt(narrow)
            drawn = drawn / 8 if path.endswith("bias") else drawn
            drawn = drawn / np.linalg.norm(drawn, axis=1, keepdims=True) if "embed_tokens" in path else drawn
            value.copy_(torch.tensor(drawn.astype(np.float32)))
    unwritten = ["<|startoftranscript|>", "<|translate|>", "<|transcribe|>", "<|startoflm|>", "<|startofprev|>"]
    suppressed = [7, 70, *(ids[mark] for mark in unwritten), *range(ids["<|0.00|>"], len(words) + 2)]
    generation = {
        "max_length": 40, "pad_token_id": end, "bos_token_id": end, "eos_token_id": end,
        "decoder_start_token_id": start, "is_multilingual": multilingual,
        "no_timestamps_token_id": ids["<|notimestamps|>"], "suppress_tokens": suppressed,
        "begin_suppress_tokens": [ids["Ġ"], end],
    }  # fmt: skip
    if multilingual:
        generation["lang_to_id"] = {mark: ids[mark] for mark in ("<|en|>", "<|de|>", "<|yue|>")}
        generation["task_to_id"] = {task: ids[f"<|{task}|>"] for task in ("transcribe", "translate")}
    net.generation_config = transformers.GenerationConfig(**generation)
    extract = transformers.WhisperFeatureExtractor(feature_size=SIZES["num_mel_bins"], chunk_length=1)
    inputs = extract([*recordings().values()], sampling_rate=RATE, return_tensors="pt").input_features
    # So that some outputs end early, <|endoftext|> gets the vector of a token that they have rarely.
    tokens, counts = np.unique(net.generate(inputs, **cases(multilingual)[0]).numpy()[:, 1:], return_counts=True)
    rare = int(tokens[np.argmin(counts)])
    with torch.no_grad():
        table = net.model.decoder.embed_tokens.weight
        table[[end, rare]] = table[[rare, end]]
    (net.bfloat16() if name.endswith("bfloat16") else net).save_pretrained(folder)
    words.save_pretrained(folder)
    extract.save_pretrained(folder)
    for file in FILES:
        ARRAYS[f"model/{name}/{file}"] = np.frombuffer((folder / file).read_bytes(), np.uint8)
    results(name, multilingual, folder, inputs, random)


def cases(multilingual: bool) -> list[dict[str, str]]:
    """The options of `generate`."""
    both = [{"language": "en", "task": "transcribe"}, {"language": "de", "task": "translate"}]
    return both if multilingual else [{}]


def results(name: str, multilingual: bool, folder: Path, inputs: torch.Tensor, random: np.random.Generator) -> None:
    net = transformers.WhisperForConditionalGeneration.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    targets = random.integers(0, net.config.vocab_size, (len(inputs), 6))
    targets[:, 0] = net.config.decoder_start_token_id
    with torch.no_grad():
        logits = net(input_features=inputs[1:3], decoder_input_ids=torch.tensor(targets[1:3])).logits.numpy()
        for options in cases(multilingual):
            case = "-".join(options.values())
            ARRAYS[f"model/{name}/written/{case}"] = net.generate(inputs, **options).numpy().astype(np.int16)
    ARRAYS[f"model/{name}/inputs"] = targets.astype(np.int16)
    ARRAYS[f"model/{name}/logits"] = logits.astype(np.float32)


def texts() -> None:
    words = tokenizer()
    # "encode" of a text that spells a special token is another matter: there, s2sjax keeps the text.
    plain = [text for text in TEXTS if "<|" not in text]
    ids = [words(text, add_special_tokens=False).input_ids for text in plain]
    ARRAYS["text/plain"] = np.array(json.dumps(plain))
    ARRAYS["text/ids"] = np.array(json.dumps(ids))
    ARRAYS["text/decoded"] = np.array(json.dumps([words.decode(each, skip_special_tokens=True) for each in ids]))


if __name__ == "__main__":
    features()
    texts()
    with tempfile.TemporaryDirectory() as temporary:
        for seed, (name, multilingual) in enumerate(MODELS.items()):
            model(name, multilingual, Path(temporary) / name, seed)
    np.savez_compressed(HERE / "whisper.npz", **ARRAYS)
