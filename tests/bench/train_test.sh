#!/usr/bin/env bash
# paragauge train: what it writes is what PyTorch makes of the same samples and parameters; a run that was killed goes on in every
# bit; wrong files are refused, and where the disk is full the old checkpoint stays.
#
#   tests/bench/train_test.sh build/bin/paragauge .venv/bin/python
set -uo pipefail
paragauge=$1
python=$2
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
failed=0
complain() {
  echo "FAILED: $*"
  failed=1
}
if "$paragauge" list | grep -q 'built without LibTorch'; then
  echo "train: built without LibTorch, skipped"
  exit 77
fi
if ! "$python" -c 'import torch' 2>/dev/null; then
  echo "train: $python has no PyTorch, skipped"
  exit 77
fi
export PARAGAUGE_PYTHON=$python
train() { "$paragauge" train --cost-model analytic --no-real-time "$@"; }
# refuses STATUS 'part of the message' argument...
refuses() {
  local status=$1 message=$2 said ended
  shift 2
  said=$(train "$@" 2>&1 >/dev/null)
  ended=$?
  [[ $ended == "$status" && $said == *"$message"* && ${#said} -le 300 ]] ||
    complain "train $*: status $ended, expected $status and a line with: $message; got: $said"
}

# ---- Against PyTorch, with files as CIFAR-10's
"$python" - "$scratch/data" <<'END'
import pathlib, random, sys
folder = pathlib.Path(sys.argv[1])
folder.mkdir()
random.seed(1)
for name, samples in (("data_batch_1", 50), ("data_batch_2", 30), ("test_batch", 70)):
    (folder / f"{name}.bin").write_bytes(b"".join(bytes([random.randrange(10)]) + random.randbytes(3072) for _ in range(samples)))
END
cat >"$scratch/reading.py" <<'END'
import json, struct
import torch
def checkpoint(path):
    """Its tensors by name, and what it says of itself."""
    content = path.read_bytes()
    length, = struct.unpack("<Q", content[:8])
    header = json.loads(content[8:8 + length])
    about = header.pop("__metadata__")
    return {name: torch.frombuffer(bytearray(content[8 + length:][slice(*entry["data_offsets"])]), dtype={"F32": torch.float32, "I64": torch.int64}[entry["dtype"]])
            .reshape(entry["shape"]) for name, entry in header.items()}, about
def samples(*paths):
    """Their labels and pixels."""
    records = torch.frombuffer(bytearray(b"".join(path.read_bytes() for path in paths)), dtype=torch.uint8).reshape(-1, 3073)
    return records[:, 0].long(), records[:, 1:].reshape(-1, 3, 32, 32).float().div(255).sub(0.5).div(0.5)
END
export PYTHONPATH=$scratch PYTHONDONTWRITEBYTECODE=1
train -m convnet,timing=epoch -s single -w local --data "$scratch/data" --epochs 1 --checkpoint "$scratch/net.safetensors" \
  -o "$scratch/net.json" >"$scratch/out" 2>"$scratch/err" || complain "convnet: $(cat "$scratch/err")"
grep -q 'an epoch is one batch of 64 and one batch of 16' "$scratch/out" || complain "the batches: $(cat "$scratch/out")"
"$python" - "$scratch" <<'END' || complain "PyTorch reads something else"
import json, pathlib, sys
import reading, torch
from torch import nn
folder = pathlib.Path(sys.argv[1])
values, about = reading.checkpoint(folder / "net.safetensors")
assert about["epoch"] == "1" and about["step"] == "2" and about["strategy"] == "single", about
assert sum(name.endswith(".exp_avg") for name in values) == 10 and values["fc1.bias.step"] == 2
net = nn.Sequential()
for name, layer in (("conv1", nn.Conv2d(3, 6, 5)), ("relu1", nn.ReLU()), ("pool1", nn.MaxPool2d(2)), ("conv2", nn.Conv2d(6, 16, 5)),
                    ("relu2", nn.ReLU()), ("pool2", nn.MaxPool2d(2)), ("flatten", nn.Flatten()), ("fc1", nn.Linear(400, 120)),
                    ("relu3", nn.ReLU()), ("fc2", nn.Linear(120, 84)), ("relu4", nn.ReLU()), ("fc3", nn.Linear(84, 10)),
                    ("softmax", nn.Softmax(dim=1))):
    net.add_module(name, layer)
net.load_state_dict({name: values[name] for name in net.state_dict()})
labels, pixels = reading.samples(folder / "data/test_batch.bin")
with torch.no_grad():
    outputs = net(pixels)
row, = json.loads((folder / "net.json").read_text())["epochs"]
assert abs(nn.functional.cross_entropy(outputs, labels).item() - row["test_loss"]) < 1e-5, row["test_loss"]
assert (outputs.argmax(1) == labels).sum().item() == round(70 * row["accuracy"]), row["accuracy"]
assert len(row["losses"]) == 2 and abs((64 * row["losses"][0] + 16 * row["losses"][1]) / 80 - row["loss"]) < 1e-9
END

# ---- A user's own model: an epoch of one batch more is one step more of PyTorch's
cat >"$scratch/net.py" <<'END'
from torch import nn
class Packed(nn.Module): # queries, keys and values are one parameter's rows, in a file three blocks
    def __init__(self):
        super().__init__()
        self.patches, self.qkv, self.proj, self.fc = nn.Conv2d(3, 8, 8, stride=8), nn.Linear(8, 24), nn.Linear(8, 8), nn.Linear(128, 10)
    def forward(self, x):
        x = self.patches(x).flatten(2).transpose(1, 2)
        q, k, v = (part.view(-1, 16, 2, 4).transpose(1, 2) for part in self.qkv(x).split(8, dim=2))
        y = nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(-1, 16, 8)
        return self.fc((x + self.proj(y)).flatten(1))
def build():
    return Packed()
def normed():
    return nn.Sequential(nn.Conv2d(3, 8, 3, stride=4), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(512, 10))
END
mkdir "$scratch/untested"
cp "$scratch"/data/data_batch_* "$scratch/untested"
own=(-m "$scratch/own.json,global_batch=80,optimizer=sgd:lr=0.1" -s fsdp -w local --data "$scratch/untested" --checkpoint "$scratch/own.safetensors")
"$paragauge" import "$scratch/net.py:build" --input 'f32[B,3,32,32]' --loss cross_entropy -o "$scratch/own.json" >"$scratch/out" 2>&1 ||
  complain "import: $(cat "$scratch/out")"
train "${own[@]}" --epochs 1 -o "$scratch/own.result" >"$scratch/out" 2>&1 || complain "own: $(cat "$scratch/out")"
grep -qE '^ +1 +[0-9.]+ +- +- ' "$scratch/out" && ! grep -q accuracy "$scratch/own.result" && tr '\n' ' ' <"$scratch/out" | grep -q 'Not tested: an imported model' ||
  complain "own, untested: $(cat "$scratch/out")"
grep -q '3x' "$scratch/own.json" || complain "own: the parameters aren't packed"
cp "$scratch/own.safetensors" "$scratch/before.safetensors"
sed 's/"cross_entropy"/"mse_loss"/' "$scratch/own.json" >"$scratch/mse.json"
refuses 2 "train: model 'build' has the loss mse_loss, not cross_entropy; there are samples of bytes only" -m "$scratch/mse.json" -s single
train "${own[@]}" --epochs 2 -o "$scratch/own.result" >"$scratch/out" 2>&1 || complain "own, on: $(cat "$scratch/out")"
"$python" - "$scratch" <<'END' || complain "a step of one's own model isn't PyTorch's"
import json, pathlib, sys
import net, reading, torch
folder = pathlib.Path(sys.argv[1])
labels, pixels = reading.samples(folder / "data/data_batch_1.bin", folder / "data/data_batch_2.bin")
(before, _), (after, _) = reading.checkpoint(folder / "before.safetensors"), reading.checkpoint(folder / "own.safetensors")
module = net.build()
module.load_state_dict(before)
loss = torch.nn.functional.cross_entropy(module(pixels), labels)
loss.backward()
first, second = json.loads((folder / "own.result").read_text())["epochs"]
assert abs(second["losses"][0] - loss.item()) < 1e-5 < abs(first["losses"][0] - loss.item()), (first, second, loss.item())
for name, parameter in module.named_parameters():
    assert parameter.grad.abs().max() > 1e-4 and torch.allclose(after[name], before[name] - 0.1 * parameter.grad, atol=1e-6), name
END

# ---- The same with a batch norm, whose averages are in the checkpoint; and in batches of which the last is smaller, gone on with
"$paragauge" import "$scratch/net.py:normed" --input 'f32[B,3,32,32]' --loss cross_entropy -o "$scratch/normed.json" >"$scratch/out" 2>&1 ||
  complain "import: $(cat "$scratch/out")"
for epochs in 1 2; do
  train -m "$scratch/normed.json,global_batch=80,optimizer=sgd:lr=0.1" -s single -w local --data "$scratch/data" --epochs $epochs \
    --checkpoint "$scratch/normed.safetensors" -o "$scratch/normed.result" >"$scratch/out" 2>&1 || complain "normed: $(cat "$scratch/out")"
  [[ $epochs == 2 ]] || cp "$scratch/normed.safetensors" "$scratch/before.safetensors"
done
"$python" - "$scratch" <<'END' || complain "a step with a batch norm isn't PyTorch's"
import json, pathlib, sys
import net, reading, torch
folder = pathlib.Path(sys.argv[1])
labels, pixels = reading.samples(folder / "data/data_batch_1.bin", folder / "data/data_batch_2.bin")
(before, _), (after, _) = reading.checkpoint(folder / "before.safetensors"), reading.checkpoint(folder / "normed.safetensors")
module = net.normed()
module.load_state_dict(before, strict=False)
loss = torch.nn.functional.cross_entropy(module(pixels), labels)
loss.backward()
first, second = json.loads((folder / "normed.result").read_text())["epochs"]
assert abs(second["losses"][0] - loss.item()) < 1e-5 < abs(first["losses"][0] - loss.item()), (first, second, loss.item())
for name, parameter in module.named_parameters():
    assert parameter.grad.abs().max() > 1e-4 or name == "0.bias", name  # which the batch norm takes away
    assert torch.allclose(after[name], before[name] - 0.1 * parameter.grad, atol=1e-6), name
for name in ("1.running_mean", "1.running_var"):
    assert torch.allclose(after[name], module.state_dict()[name], atol=1e-6) and not torch.equal(after[name], before[name]), name
END
for run in "whole 2" "halves 1" "halves 2"; do
  train -m "$scratch/normed.json,global_batch=64" -s ddp -w local --data "$scratch/data" --epochs "${run#* }" \
    --checkpoint "$scratch/${run% *}.safetensors" -o "$scratch/${run% *}.result" >"$scratch/out" 2>&1 || complain "normed, $run: $(cat "$scratch/out")"
done
grep -q 'goes on after epoch 1 of 2' "$scratch/out" || complain "normed, gone on: $(cat "$scratch/out")"
grep -q 'an epoch is one batch of 64 and one batch of 16' "$scratch/out" || complain "normed, the batches: $(cat "$scratch/out")"
cmp "$scratch/whole.safetensors" "$scratch/halves.safetensors" || complain "normed: what is gone on with isn't what it would have been"

# ---- A full disk
cat >"$scratch/wide.json" <<'END'
{"format": "paragauge-model-1", "name": "wide", "input": [10], "target": {"classes": 4}, "global_batch": 4, "loss": "mse_loss",
 "optimizer": {"kind": "adam", "lr": 0.001}, "nodes": [{"name": "a", "op": "linear", "out_features": 1000},
 {"name": "b", "op": "linear", "out_features": 1000}, {"name": "c", "op": "linear", "out_features": 4}]}
END
wide=(-m "$scratch/wide.json" -s single -w local --samples 4 --checkpoint "$scratch/wide")
train "${wide[@]}" --epochs 1 >"$scratch/out" 2>&1 || complain "wide: $(cat "$scratch/out")"
cp "$scratch/wide" "$scratch/before"
(
  ulimit -f 10000 # blocks of 1 KiB: the ranks' progress has 8 MiB, the checkpoint 12 MB
  train "${wide[@]}" --epochs 2 >"$scratch/out" 2>"$scratch/err"
  [[ $? == 75 ]] && grep -q "wide: can't be written: File too large" "$scratch/err"
) || complain "a full disk: $(cat "$scratch/err")"
cmp "$scratch/wide" "$scratch/before" || complain "the old checkpoint is gone"
compgen -G "$scratch/.*.part" && complain "a part of a checkpoint is left"

# ---- Killed, and gone on with
lightning=(-m linear_lightning,device_batch=32 -s ddp -w gloo --samples 1000 --epochs 4)
train "${lightning[@]}" --checkpoint "$scratch/whole" -o "$scratch/whole.json" >"$scratch/out" 2>"$scratch/err" || complain "$(cat "$scratch/err")"
"$paragauge" train --cost-model analytic --no-real-time "${lightning[@]}" --checkpoint "$scratch/parts" -o "$scratch/parts.json" >"$scratch/out" 2>"$scratch/err" &
for ((i = 0; i < 400; ++i)); do
  [[ ! -e $scratch/parts ]] || break
  sleep 0.05
done
kill -9 $!
wait $! 2>/dev/null
train "${lightning[@]}" --checkpoint "$scratch/parts" -o "$scratch/parts.json" >"$scratch/out" 2>"$scratch/err" || complain "again: $(cat "$scratch/err")"
grep -qE 'goes on after epoch [1-4] of 4' "$scratch/out" || complain "it began anew: $(cat "$scratch/out")"
cmp "$scratch/whole" "$scratch/parts" || complain "a run that was killed ends otherwise"
"$python" - "$scratch/whole.json" "$scratch/parts.json" <<'END' || complain "its result has other losses"
import json, sys
whole, parts = ([(epoch["epoch"], epoch["losses"], epoch["accuracy"]) for epoch in json.load(open(file))["epochs"]] for file in sys.argv[1:])
assert whole == parts and len(whole) == 4, (whole, parts)
END

# ---- What is refused
toy=(-m toy_mlp -s single -w local --samples 40 --epochs 1 --checkpoint "$scratch/toy")
train "${toy[@]}" >"$scratch/out" 2>&1 || complain "toy: $(cat "$scratch/out")"
refuses 2 "toy: is a checkpoint with strategy 'single', this run has 'ddp,dp=2'" -m toy_mlp -s ddp "${toy[@]:4}"
refuses 2 "toy: is a checkpoint with model 'toy_mlp,global_batch=20', this run has 'toy_mlp,global_batch=10'" -m toy_mlp,global_batch=10 "${toy[@]:2}"
refuses 2 "toy: is a checkpoint with seed '1', this run has '2'" "${toy[@]}" --seed 2
refuses 2 "train: model 'gpt_toy' reads tokens; there are samples of bytes only" -m "$(dirname "$0")/../models/gpt_toy.json" "${toy[@]:2}"
sed 's/net1.weight/net9.weight/g' "$scratch/toy" >"$scratch/other"
refuses 2 "other: has no 'net1.weight'" "${toy[@]:0:8}" --checkpoint "$scratch/other"
head -c -1 "$scratch/toy" >"$scratch/cut"
refuses 2 "cut: truncated" "${toy[@]:0:8}" --checkpoint "$scratch/cut"
echo text >"$scratch/text"
refuses 2 "text: no safetensors file, or a truncated one (5 bytes)" "${toy[@]:0:8}" --checkpoint "$scratch/text"
refuses 2 "text: is no result of train, and would be replaced" "${toy[@]}" -o "$scratch/text"
refuses 2 "own.result: is a result with data '" "${toy[@]}" -o "$scratch/own.result"
head -c 3000 "$scratch/data/data_batch_1.bin" >"$scratch/data/data_batch_2.bin"
refuses 2 "data_batch_2.bin: 3000 bytes aren't whole records of 3073" -m convnet -s single -w local --data "$scratch/data"
refuses 2 "has no data_batch_1.bin" -m convnet -s single -w local --data "$scratch/missing"
refuses 2 "train: --profile is read by --cost-model fitted and profiled only, found analytic" -m toy_mlp -s single --profile "$scratch/text"
refuses 2 "--phases is about daso, found strategy 'single'" -m toy_mlp -s single -w local --phases
refuses 2 "timing=tutorial makes random samples of its own" -m toy_mlp,timing=tutorial -s single -w local
((failed == 0)) && echo "train: all is well"
exit $failed
