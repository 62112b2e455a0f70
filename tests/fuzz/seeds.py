#!/usr/bin/env python3
"""Writes the seeds of the fuzz targets, small inputs made of the tree's own files, and their dictionaries."""
import argparse
import json
import re
import shutil
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CATALOG = ROOT / "sim" / "catalog"
# Longer words are no keywords, and libFuzzer takes no entry of more than 64 bytes.
LONGEST_WORD = 40


def catalog(folder, largest=4000):
    return [path.read_text() for path in sorted((CATALOG / folder).glob("*.json")) if path.stat().st_size <= largest]


def models():
    yield from catalog("models")
    mlp = (CATALOG / "models" / "toy_mlp.json").read_text()
    convnet = (CATALOG / "models" / "convnet.json").read_text()
    yield ",loss=cross_entropy,optimizer=adam:lr=0.1:beta1=0.5\n" + mlp
    yield ",global_batch=8,optimizer=sgd:lr=0.1:momentum=0.9,dtype=f64\n" + mlp
    yield ",image=64,global_batch=2\n" + convnet
    yield "toy_mlp,global_batch=4,loss=mse_loss"
    for model in imported_models():
        text = json.dumps(model, separators=(",", ":"))
        yield text
        yield ",global_batch=4,precision=bf16\n" + text
    yield "convnet,image=32,global_batch=2,dtype=f64"
    yield json.dumps({
        "format": "paragauge-model-1", "name": "blocks", "input": [3, 8, 8], "target": {"classes": 4},
        "optimizer": {"kind": "adam"}, "loss": "cross_entropy",
        "blocks": {
            "unit": {"nodes": [
                {"name": "conv", "op": "conv2d", "out_channels": "$channels", "kernel_size": 3, "padding": 1},
                {"name": "norm", "op": "batch_norm"},
                {"name": "add", "op": "add", "inputs": ["norm", "in"]},
                {"name": "relu", "op": "relu", "inplace": True}]},
            "pair": {"nodes": [{"name": "a", "block": "unit", "channels": 3},
                               {"name": "b", "block": "unit", "channels": 3}]}},
        "nodes": [{"name": "l{i}", "block": "pair", "first": 1, "repeat": 2},
                  {"name": "pool", "op": "max_pool", "kernel_size": 2},
                  {"name": "mean", "op": "adaptive_avg_pool", "output_size": 1},
                  {"name": "flat", "op": "flatten"}, {"name": "fc", "op": "linear", "out_features": 4}]})


def imported(file, names):
    """A chain of these nodes of an imported model, with what they use."""
    file = json.loads(json.dumps(file))
    nodes = {node["name"]: node for node in file["nodes"]}
    file["nodes"] = [dict(nodes[name], inputs=[before]) for before, name in zip(["input", *names], names)]
    used = {node[key] for node in file["nodes"] for key in ("body", "in_parts", "half", "half_parameters") if key in node}
    read = {name for node in file["nodes"] for name in node["parameters"]}
    for kind, kept in (("bodies", used), ("half", used), ("half_parameters", used), ("parameters", read)):
        file[kind] = {name: each for name, each in file.get(kind, {}).items() if name in kept}
    return file | {"units": ["h.0"], "constants": {}}


def imported_models():
    models = {name: json.loads((ROOT / "tests" / "models" / f"{name}.json").read_text()) for name in ("gpt_toy", "token_toy", "quantised_toy")}
    yield models["token_toy"]
    yield models["quantised_toy"]
    yield imported(models["gpt_toy"], ["wte", "lm_head"])
    yield imported(models["gpt_toy"], ["wte", "h.0.mlp.c_fc", "h.0.mlp.act", "h.0.mlp.c_proj", "lm_head"])
    yield imported(models["gpt_toy"], ["wte", "h.0.ln_1", "h.0.attn.c_attn", "h.0.attn.attention"])


def strategies():
    text = "".join(path.read_text() for path in sorted((ROOT / "sim" / "strategy").glob("*.cpp")))
    yield from re.findall(r'\.example = "([^"]*)"', text)
    yield from ["single", "dp=2,pp=2,microbatches=4", "pipeline,pp=2,split_size=4,cut=r1", "ddp,dp=4,broadcast_buffers=0",
                "mesh,dp=3,pp=3,cut=net1+relu,schedule=gpipe,microbatches=2,first_bucket_MiB=0.5,bucket_MiB=1e-3",
                "model_parallel,pp=2,cut=balanced"]


def first_of(rounds, count):
    """Of a list of rounds (until paragauge-result-3), or of the lists of their values."""
    if isinstance(rounds, list):
        return rounds[:count]
    return {key: first_of(values, count) for key, values in rounds.items()}


def small_results():
    for name in ("old_result.json", "result_synthetic.json"):
        result = json.loads((ROOT / "tests" / "golden" / name).read_text())
        result["columns"] = result["rows"] = result["summary"] = []
        all_cells = result["cells"]
        # Five rounds have intervals and a noise floor, one has not.
        for cells, rounds in ((2, 1), (1, 5)):
            result["cells"] = [dict(cell, rounds=first_of(cell["rounds"], rounds)) for cell in all_cells[:cells]]
            yield json.dumps(result)


def programs():
    for path in sorted((ROOT / "tests" / "golden" / "programs").glob("*.txt")):
        yield path.read_text()


def profiles():
    """Of the program that the target plays, as if measured, with and without company."""
    program = (ROOT / "tests" / "golden" / "programs" / "toy_mlp.ddp.txt").read_text()
    works = re.findall(r"^work (.*)$", program, re.MULTILINE)
    times = {"count": 3, "mean_s": 1e-5, "sd_s": 1e-6, "median_s": 1e-5, "jitter_s": 1e-6}
    time = [3, 1e-5, 1e-5, 1e-6, 1e-6]
    for levels, sizes in (((1,), (0, 4096)), ((1, 2), (64, 4096, 1 << 20))):
        yield json.dumps({
            "format": "paragauge-profile-3", "device": "cpu", "environment": {}, "launch": times,
            "ops": [{"work": work, "workspace_bytes": 4096, "times": {"local": {str(busy): time for busy in levels}}} for work in works],
            "links": [dict(world="gloo", kind=kind, members=2, bytes=size, **dict(times, mean_s=1e-5 + size * 1e-9),
                           post_s=2e-5, recv_post_s=1e-5)
                      for kind in ("send", "unexpected_send", "note", "all_reduce", "broadcast") for size in sizes],
            "core_share": {"gloo": 0.5}, "rank_spread": {"gloo": {"count": 9, "difference": 0.05, "hiccup_variance": 1e-4}},
            "interruptions": {"local": {"played_s": 2, "lost_s": 0.01}}, "link_fits": []})


SEEDS = {
    "cluster": lambda: catalog("clusters"),
    "device": lambda: catalog("devices"),
    "lowering": models,
    "model": models,
    "profile": profiles,
    "program": programs,
    "result": small_results,
    "schedule": lambda: ["F0", "F0 F1 F2 F3 B0 B1 B2 B3", "F0 F1 B0 F2 B1 F3 B2 B3"],
    "strategy": strategies,
}
# What a format knows beside the words of the seeds.
WORDS = {
    "cluster": ["engine", "receiver", "background", "inter_node", "1e-300", "1e300", "18446744073709551616"],
    "device": ["1e-300", "1e300", "-1", "null"],
    "lowering": ["softmax", "$", "{i}"],
    "model": ["softmax", "groups", "dilation", "$", "{i}", "1e9", "9223372036854775807"],
    "profile": ["1e-300", "1e300", "9007199254740992", "1048576"],
    "program": ["wait", "t0", "t1", "prologue", "body", "steps=1", "epilogue", "copy", "view", "+0", "; free", "->", "nan", "inf", "1099511627776", "to=pp+1", "from=pp-1", "tag=0"],
    "result": ["1e-300", "1e300", "9223372036854775807", "null", "single"],
    "schedule": ["F2147483647", "B0 "],
    "strategy": ["zero=1", "tp=2", "sp=1", "schedule=1f1b", "1048576", "balanced"],
}


def words_of(target, seed):
    if target in ("cluster", "device", "lowering", "model", "profile", "result"):
        return re.findall(r'"[^"\\\n]{1,%d}"' % LONGEST_WORD, seed)
    return re.findall(r"[A-Za-z_][A-Za-z_0-9.]*=?", seed)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="gets <target>/* and <target>.dict")
    folder = parser.parse_args().folder
    for target, make in SEEDS.items():
        shutil.rmtree(folder / target, ignore_errors=True)
        (folder / target).mkdir(parents=True)
        words = set(WORDS[target])
        for i, seed in enumerate(make()):
            (folder / target / f"seed{i}").write_text(seed)
            words.update(words_of(target, seed))
        escaped = [word.replace("\\", "\\\\").replace('"', '\\"') for word in sorted(words) if 1 < len(word) <= LONGEST_WORD]
        (folder / f"{target}.dict").write_text("".join(f'"{word}"\n' for word in escaped if word.isascii()))


if __name__ == "__main__":
    main()
