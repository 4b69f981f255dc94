"""Trains the model of speech that ships with the example and exports it: python train.py, with espeak-ng.

Data: sentences of 1 to 8 words out of 16, spoken by voices of espeak-ng, see voices.py; voices of the test are others. Model: one of
Whisper's shape, with a million parameters and windows of 5 seconds. Steps take half a second each on one core; a run that was
stopped goes on where it last saved.

Output beside this script: two models with weights of 8 bits, cut and named as ONNX Runtime's converter of Whisper does it. The encoder
takes `samples` f32[1, 40000] at 8,000 Hz and gives the keys and values that the decoder's layers attend to,
`present_key_cross_N` and `present_value_cross_N` f32[1, 4, 125, 32]. The decoder takes these as `past_key_cross_N` and
`past_value_cross_N`, `input_ids` i64[1, length], and `past_key_self_N` and `past_value_self_N` f32[1, 4, past, 32]; it gives `logits`
f32[1, length, 18] and `present_key_self_N` and `present_value_self_N` f32[1, 4, past + length, 32]. tokens.h has the texts of the
tokens.
"""
import argparse
import logging
import math
import pathlib
import time

import numpy as np
import onnx
import torch
from onnxruntime.quantization.matmul_nbits_quantizer import DefaultWeightOnlyQuantConfig, MatMulNBitsQuantizer, QuantFormat
from transformers import WhisperConfig, WhisperForConditionalGeneration
from transformers.cache_utils import DynamicCache, EncoderDecoderCache

from voices import LONGEST, RATE, WORDS, utterances

HERE = pathlib.Path(__file__).parent
#: Samples from one frame of the spectrum to the next, samples of a frame, and bands.
HOP, FRAME, BANDS = 160, 256, 40
END, START = 0, 1
TOKENS = ["<|endoftext|>", "<|startoftranscript|>", *WORDS]
CONFIG = WhisperConfig(
    vocab_size=len(TOKENS), num_mel_bins=BANDS, d_model=128, encoder_layers=3, decoder_layers=2, encoder_attention_heads=4,
    decoder_attention_heads=4, encoder_ffn_dim=384, decoder_ffn_dim=384, max_source_positions=LONGEST // HOP // 2,
    max_target_positions=16, pad_token_id=END, bos_token_id=START, eos_token_id=END, decoder_start_token_id=START,
    begin_suppress_tokens=None, dropout=0.0)


def bands():
    """Triangles over the frequencies of a frame, evenly spaced in mel (2595 log10(1 + f / 700)): f32[FRAME / 2 + 1, BANDS]."""
    most = 2595 * math.log10(1 + RATE / 2 / 700)
    corners = 700 * (10 ** (np.linspace(0, most, BANDS + 2) / 2595) - 1)
    at = np.arange(FRAME // 2 + 1) * RATE / FRAME
    low, middle, high = corners[:-2], corners[1:-1], corners[2:]
    rising, falling = (at[:, None] - low) / (middle - low), (high - at[:, None]) / (high - middle)
    return torch.from_numpy(np.maximum(0, np.minimum(rising, falling)).astype(np.float32))


class Spectrum(torch.nn.Module):
    """Samples f32[batch, LONGEST] to logarithms of the power in each band, f32[batch, BANDS, LONGEST / HOP], as Whisper has them."""

    def __init__(self):
        super().__init__()
        self.register_buffer("window", torch.hann_window(FRAME))
        self.register_buffer("bands", bands())

    def forward(self, samples):
        padded = torch.nn.functional.pad(samples, (0, FRAME))
        frames = torch.view_as_real(torch.stft(padded, FRAME, HOP, window=self.window, center=False, return_complex=True))
        power = frames.square().sum(-1)[..., :LONGEST // HOP]
        found = (power.transpose(1, 2) @ self.bands).clamp(min=1e-6).log10()
        found = torch.maximum(found, found.amax((1, 2), keepdim=True) - 6)
        return ((found + 3) / 3).transpose(1, 2)


def batch_of(data, random, size):
    """Utterances anywhere in their windows, of any loudness, with noise; tokens, and what they are to become."""
    samples, tokens, wanted = np.zeros((size, LONGEST), np.float32), np.full((size, 10), END), np.full((size, 10), -100)
    for row in range(size):
        spoken, words = data[random.integers(len(data))]
        at = random.integers(LONGEST - len(spoken) + 1)
        samples[row, at:at + len(spoken)] = spoken * 10 ** random.uniform(-1.2, 0.2)
        samples[row] += random.standard_normal(LONGEST, np.float32) * 10 ** random.uniform(-4.5, -2)
        numbers = [2 + WORDS.index(word) for word in words]
        tokens[row, :len(words) + 1] = [START, *numbers]
        wanted[row, :len(words) + 1] = [*numbers, END]
    return torch.from_numpy(samples.clip(-1, 1)), torch.from_numpy(tokens), torch.from_numpy(wanted)


def masked(spectrum, random):
    """Without some bands and some frames, so that nothing is learnt from one place alone."""
    for row in spectrum:
        for axis, most in ((0, 6), (1, 12)):
            width = random.integers(most + 1)
            at = random.integers(row.shape[axis] - width + 1)
            row.narrow(axis, at, width).zero_()
    return spectrum


def accuracy(model, spectrum, data):
    """Share of sentences that are found without a mistake."""
    random, right, count = np.random.default_rng(0), 0, 0
    model.eval()
    with torch.no_grad():
        for start in range(0, len(data), 50):
            part = data[start:start + 50]
            samples = np.zeros((len(part), LONGEST), np.float32)
            for row, (spoken, _) in enumerate(part):
                at = random.integers(LONGEST - len(spoken) + 1)
                samples[row, at:at + len(spoken)] = spoken
            hidden = model.model.encoder(spectrum(torch.from_numpy(samples)))
            tokens = torch.full((len(part), 1), START)
            for _ in range(10):
                logits = model(encoder_outputs=hidden, decoder_input_ids=tokens, use_cache=False).logits
                tokens = torch.cat([tokens, logits[:, -1:].argmax(-1)], 1)
            for (_, words), row in zip(part, tokens.tolist()):
                found = row[1:row.index(END)] if END in row else row[1:]
                right += [TOKENS[token] for token in found] == words
                count += 1
    model.train()
    return right / count


def train(model, spectrum, data, held, steps, checkpoint):
    """With a second loss of the words in their order at the encoder (CTC), by which the attention finds its places sooner."""
    head = torch.nn.Linear(CONFIG.d_model, len(TOKENS))
    parameters = [*model.parameters(), *head.parameters()]
    optimizer = torch.optim.AdamW([p for p in parameters if p.requires_grad], lr=1e-3, betas=(0.9, 0.98), weight_decay=0.01)
    first, start = 0, time.time()
    if checkpoint.exists():
        saved = torch.load(checkpoint)
        first = saved["step"]
        for own, state in zip((model, head, optimizer), saved["states"]):
            own.load_state_dict(state)
    for step in range(first, steps):
        random = np.random.default_rng(step)
        for group in optimizer.param_groups:
            group["lr"] = 1.5e-3 * min(1, (step + 1) / 100) * (0.5 + 0.5 * math.cos(math.pi * step / steps))
        samples, tokens, wanted = batch_of(data, random, 32)
        with torch.no_grad():
            features = masked(spectrum(samples), random)
        hidden = model.model.encoder(features)
        logits = model(encoder_outputs=hidden, decoder_input_ids=tokens, use_cache=False).logits
        value = torch.nn.functional.cross_entropy(logits.flatten(0, 1), wanted.flatten(), label_smoothing=0.05)
        paths = head(hidden.last_hidden_state).log_softmax(-1).transpose(0, 1)
        lengths = (wanted > 0).sum(1)
        order = torch.nn.functional.ctc_loss(paths, wanted.clamp(min=0), torch.full_like(lengths, len(paths)), lengths,
                                             blank=END, zero_infinity=True)
        (value + 0.5 * order).backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if (step + 1) % 100 == 0:
            test = accuracy(model, spectrum, held[:100]) if (step + 1) % 500 == 0 else math.nan
            print(f"step {step + 1}: loss {value:.3f}, order {order:.3f}, held-out sentences right {test:.3f}, "
                  f"{time.time() - start:.0f} s", flush=True)
            torch.save({"step": step + 1, "states": [own.state_dict() for own in (model, head, optimizer)]}, checkpoint)


class Encoder(torch.nn.Module):
    """From samples to the keys and values of all layers of the decoder."""

    def __init__(self, model, spectrum):
        super().__init__()
        self.encoder, self.layers, self.spectrum = model.model.encoder, model.model.decoder.layers, spectrum

    def forward(self, samples):
        hidden = self.encoder(self.spectrum(samples)).last_hidden_state
        made = [project(hidden) for layer in self.layers for project in (layer.encoder_attn.k_proj, layer.encoder_attn.v_proj)]
        heads = CONFIG.decoder_attention_heads
        return tuple(own.unflatten(-1, (heads, -1)).transpose(1, 2) for own in made)


class Decoder(torch.nn.Module):
    """From tokens and caches, a key and a value of each layer in turn, to logits and the caches of what was said."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, input_ids, own, cross):
        past = EncoderDecoderCache(DynamicCache(), DynamicCache())
        for layer in range(CONFIG.decoder_layers):
            past.self_attention_cache.update(own[2 * layer], own[2 * layer + 1], layer)
            past.cross_attention_cache.update(cross[2 * layer], cross[2 * layer + 1], layer)
            past.is_updated[layer] = True
        # The caches stand for it.
        nothing = torch.zeros(1, 1, CONFIG.d_model)
        hidden = self.model.model.decoder(input_ids=input_ids, encoder_hidden_states=nothing, past_key_values=past, use_cache=True)
        present = [part for layer in hidden.past_key_values.self_attention_cache.layers for part in (layer.keys, layer.values)]
        return self.model.proj_out(hidden.last_hidden_state), *present


def names(prefix, kind):
    return [f"{prefix}_{part}_{kind}_{layer}" for layer in range(CONFIG.decoder_layers) for part in ("key", "value")]


def export(model, spectrum, encoder, decoder):
    """Writes both models to these files."""
    model.set_attn_implementation("eager")
    setup = dict(opset_version=21, dynamo=True, external_data=False, verbose=False)
    heads, size = CONFIG.decoder_attention_heads, CONFIG.d_model // CONFIG.decoder_attention_heads
    cache = lambda length: [torch.randn(1, heads, length, size) for _ in range(2 * CONFIG.decoder_layers)]
    with torch.no_grad():
        torch.onnx.export(Encoder(model, spectrum).eval(), (torch.randn(1, LONGEST),), encoder, input_names=["samples"],
                          output_names=names("present", "cross"), **setup)
        own = [{2: "past"} for _ in names("past", "self")]
        torch.onnx.export(
            Decoder(model).eval(), (torch.zeros(1, 3, dtype=torch.long), cache(5), cache(CONFIG.max_source_positions)), decoder,
            dynamic_shapes={"input_ids": {1: "length"}, "own": own, "cross": [{} for _ in own]},
            input_names=["input_ids", *names("past", "self"), *names("past", "cross")],
            output_names=["logits", *names("present", "self")], **setup)


def packed(path, name):
    """The model with its matrices in 8 bits, in blocks of 64, and without what the exporter notes about each node."""
    model = onnx.load(path)
    setup = dict(block_size=64, is_symmetric=True, bits=8, quant_format=QuantFormat.QOperator, op_types_to_quantize=("MatMul",))
    quantizer = MatMulNBitsQuantizer(model, **setup, algo_config=DefaultWeightOnlyQuantConfig(**setup))
    quantizer.process()
    model = quantizer.model.model
    model.graph.name = name
    del model.graph.value_info[:], model.metadata_props[:], model.graph.metadata_props[:]
    for node in model.graph.node:
        node.doc_string = ""
        del node.metadata_props[:]
    for value in [*model.graph.initializer, *model.graph.input, *model.graph.output]:
        del value.metadata_props[:]
    return model


def write_tokens(path):
    lines = ["/* The texts of the tokens, by number; written by train.py. */", "#ifndef TOKENS_H", "#define TOKENS_H", "",
             f"enum {{ TOKENS_END = {END}, TOKENS_START = {START}, TOKENS_COUNT = {len(TOKENS)} }};", "",
             "static const char *const tokens[TOKENS_COUNT] = {"]
    lines += [f'    "{token}",' for token in TOKENS]
    path.write_text("\n".join([*lines, "};", "", "#endif", ""]))


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--utterances", type=int, default=8000)
    arguments.add_argument("--steps", type=int, default=3000)
    arguments.add_argument("--threads", type=int, default=1)
    arguments.add_argument("--build", type=pathlib.Path, default=HERE / "build", help="folder of the checkpoint")
    options = arguments.parse_args()
    options.build.mkdir(exist_ok=True)
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    start = time.time()
    data, held = utterances(options.utterances, 1), utterances(300, 2, held_out=True)
    print(f"{len(data)} utterances, {sum(len(own) for own, _ in data) / RATE / len(data):.2f} s each, {time.time() - start:.0f} s")
    model, spectrum = WhisperForConditionalGeneration(CONFIG), Spectrum()
    print(f"{sum(p.numel() for p in model.parameters())} parameters", flush=True)
    train(model, spectrum, data, held, options.steps, options.build / "checkpoint.pt")
    print(f"held-out sentences right: {accuracy(model, spectrum, held):.3f}")
    logging.disable(logging.INFO)
    files = {name: str(options.build / f"{name}.onnx") for name in ("encoder", "decoder")}
    export(model.eval(), spectrum, files["encoder"], files["decoder"])
    for name, path in files.items():
        onnx.save(packed(path, name), HERE / f"{name}.onnx")
        print(f"{name}.onnx: {(HERE / name).with_suffix('.onnx').stat().st_size} bytes")
    write_tokens(HERE / "tokens.h")


if __name__ == "__main__":
    main()
