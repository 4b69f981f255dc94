"""Trains the language model that ships with the example and exports it:

    apt-get download r-cran-janeaustenr && dpkg -x r-cran-janeaustenr*.deb novels
    python train.py novels

Data: Jane Austen's six novels, see text.py; every twentieth chapter is held out. Model: a decoder as Llama's, of 1.7 million
parameters, on tokens of a byte-level BPE of 1,536; positions up to 512. Steps take a second each on one core; a run that was
stopped goes on where it last saved. Output beside this script: tokenizer.json, and chat.onnx with weights of 8 bits and an
embedding of 4 (ONNX Runtime's quantiser). Its inputs are input_ids i64[batch, length], attention_mask i64[batch, total],
position_ids i64[batch, length] and past_key_values.N.key and .value f32[batch, 2, past, 32] for each layer; its outputs
logits f32[batch, length, 1536] and present.N.key and .value f32[batch, 2, past + length, 32].
"""
import argparse
import logging
import math
import pathlib
import time

import numpy as np
import onnx
import onnxruntime
import torch
from onnxruntime.quantization.matmul_nbits_quantizer import DefaultWeightOnlyQuantConfig, MatMulNBitsQuantizer, QuantFormat
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.cache_utils import DynamicCache

from text import chapters

HERE = pathlib.Path(__file__).parent
END = "<|endoftext|>"
CONFIG = LlamaConfig(
    vocab_size=1536, hidden_size=192, intermediate_size=384, num_hidden_layers=4, num_attention_heads=6, num_key_value_heads=2,
    head_dim=32, max_position_embeddings=512, tie_word_embeddings=True, bos_token_id=0, eos_token_id=0, pad_token_id=None)
TOKENS = 4096  # of a step


def learn_tokens(texts):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(texts, trainers.BpeTrainer(
        vocab_size=CONFIG.vocab_size, special_tokens=[END], initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False))
    tokenizer.save(str(HERE / "tokenizer.json"))
    return tokenizer


def stream(tokenizer, texts):
    """The tokens of all texts, the end's before each."""
    return torch.tensor([token for text in texts for token in [0, *tokenizer.encode(text).ids]])


def loss(model, rows):
    logits = model(input_ids=rows[:, :-1], use_cache=False).logits
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())


def train(model, tokens, held, steps, checkpoint):
    """The matrices of the layers by Muon, the rest by AdamW; a linear descent of the rates over the last half."""
    matrices = [p for name, p in model.named_parameters() if p.ndim == 2 and "embed" not in name]
    others = [p for name, p in model.named_parameters() if p.ndim != 2 or "embed" in name]
    optimizers = [torch.optim.Muon(matrices, lr=0.02, momentum=0.95, weight_decay=0.01),
                  torch.optim.AdamW(others, lr=3e-3, betas=(0.9, 0.95), weight_decay=0.0)]
    rates = [optimizer.param_groups[0]["lr"] for optimizer in optimizers]
    first = 0
    if checkpoint.exists():
        saved = torch.load(checkpoint)
        first = saved["step"]
        model.load_state_dict(saved["model"])
        for optimizer, state in zip(optimizers, saved["optimizers"]):
            optimizer.load_state_dict(state)
    start = time.time()
    for step in range(first, steps):
        scale = min(1, (step + 1) / 20, 2 * (1 - step / steps))
        for optimizer, rate in zip(optimizers, rates):
            optimizer.param_groups[0]["lr"] = rate * scale
        # Most of what there is to learn is near; positions beyond 256 are learnt in the last quarter.
        length = 256 if step < steps * 3 // 4 else 512
        random = torch.Generator().manual_seed(step)
        starts = torch.randint(len(tokens) - length - 1, (TOKENS // length,), generator=random)
        value = loss(model, torch.stack([tokens[at:at + length + 1] for at in starts]))
        value.backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        if (step + 1) % 50 == 0:
            with torch.no_grad():
                test = loss(model, held)
            print(f"step {step + 1}: loss {value:.3f}, held-out {test:.3f}, {time.time() - start:.0f} s", flush=True)
            torch.save({"step": step + 1, "model": model.state_dict(),
                        "optimizers": [optimizer.state_dict() for optimizer in optimizers]}, checkpoint)


class WithCache(torch.nn.Module):
    """The model as a function of the caches' tensors, a key and a value of each layer in turn."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, input_ids, attention_mask, position_ids, *cache):
        past = DynamicCache()
        for layer in range(len(cache) // 2):
            past.update(cache[2 * layer], cache[2 * layer + 1], layer)
        result = self.model(input_ids=input_ids, attention_mask=attention_mask, position_ids=position_ids,
                            past_key_values=past, use_cache=True)
        present = [part for layer in result.past_key_values.layers for part in (layer.keys, layer.values)]
        return result.logits, *present


def export(model, path):
    model.set_attn_implementation("eager")
    parts = [f"{layer}.{part}" for layer in range(CONFIG.num_hidden_layers) for part in ("key", "value")]
    cache = [torch.randn(2, CONFIG.num_key_value_heads, 5, CONFIG.head_dim) for _ in parts]
    arguments = (torch.zeros(2, 3, dtype=torch.long), torch.ones(2, 8, dtype=torch.long),
                 torch.arange(5, 8).repeat(2, 1), *cache)
    names = ["input_ids", "attention_mask", "position_ids"]
    dims = dict(zip(names, [{0: "batch", 1: "length"}, {0: "batch", 1: "total"}, {0: "batch", 1: "length"}]))
    dims["cache"] = tuple({0: "batch", 2: "past"} for _ in cache)
    with torch.no_grad():
        torch.onnx.export(
            WithCache(model).eval(), arguments, path, dynamic_shapes=dims, opset_version=21, dynamo=True,
            external_data=False, verbose=False,
            input_names=names + ["past_key_values." + part for part in parts],
            output_names=["logits"] + ["present." + part for part in parts])


def transposed(graph):
    """The head's matrix is the embedding's, transposed by a node: a constant of its own can be quantised in its own blocks."""
    weights = {weight.name: weight for weight in graph.initializer}
    for node in [node for node in graph.node if node.op_type == "Transpose" and node.input[0] in weights]:
        order = onnx.helper.get_node_attr_value(node, "perm")
        matrix = onnx.numpy_helper.to_array(weights[node.input[0]]).transpose(order)
        graph.initializer.append(onnx.numpy_helper.from_array(np.ascontiguousarray(matrix), node.output[0]))
        graph.node.remove(node)


def quantise(model):
    """8 bits in blocks of 64 for the matrices; 4 bits, all that there is, for the rows of the embedding."""
    transposed(model.graph)
    for kind, bits in (("MatMul", 8), ("Gather", 4)):
        setup = dict(block_size=64, is_symmetric=True, bits=bits, quant_format=QuantFormat.QOperator,
                     op_types_to_quantize=(kind,))
        quantizer = MatMulNBitsQuantizer(model, **setup, algo_config=DefaultWeightOnlyQuantConfig(**setup))
        quantizer.process()
        model = quantizer.model.model
    return model


def plain(model):
    """Without what the exporter notes about each node: most of a small file."""
    model.graph.name = "chat"
    del model.graph.value_info[:], model.metadata_props[:], model.graph.metadata_props[:]
    for node in model.graph.node:
        node.doc_string = ""
        del node.metadata_props[:]
    for value in [*model.graph.initializer, *model.graph.input, *model.graph.output]:
        del value.metadata_props[:]
    return model


def held_out(path, rows):
    """The loss of a model as a file."""
    session, sums = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"]), []
    caches = {own.name: np.zeros((1, own.shape[1], 0, own.shape[3]), np.float32) for own in session.get_inputs()[3:]}
    for row in rows.numpy():
        ids = row[None, :-1]
        logits, = session.run(["logits"], {"input_ids": ids, "attention_mask": np.ones_like(ids),
                                           "position_ids": np.arange(ids.size)[None], **caches})
        sums.append(torch.nn.functional.cross_entropy(torch.from_numpy(logits[0]), torch.from_numpy(row[1:])).item())
    return sum(sums) / len(sums)


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("novels", help="folder that the package was unpacked to")
    arguments.add_argument("--steps", type=int, default=1100)
    arguments.add_argument("--threads", type=int, default=1)
    arguments.add_argument("--build", type=pathlib.Path, default=HERE / "build", help="folder of the checkpoint")
    options = arguments.parse_args()
    options.build.mkdir(exist_ok=True)
    logging.disable(logging.INFO)
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    texts = chapters(options.novels)
    tokenizer = learn_tokens(texts)
    tokens = stream(tokenizer, [text for at, text in enumerate(texts) if at % 20 != 19])
    held = stream(tokenizer, texts[19::20])[:16 * 512].reshape(16, 512)
    model = LlamaForCausalLM(CONFIG)
    print(f"{sum(p.numel() for p in model.parameters())} parameters, {len(tokens)} tokens", flush=True)
    train(model, tokens, held, options.steps, options.build / "checkpoint.pt")
    original, target = str(options.build / "float.onnx"), HERE / "chat.onnx"
    export(model, original)
    onnx.save(plain(quantise(onnx.load(original))), target)
    print(f"held-out {held_out(original, held):.4f}, quantised {held_out(str(target), held):.4f}, {target.stat().st_size} bytes")


if __name__ == "__main__":
    main()
