"""Model folders in and out: layouts, sharding, padding, and every way a folder can be wrong."""

import json
import shutil
from pathlib import Path

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as Spec
from safetensors.numpy import load_file, save_file

from rlhf_jax.errors import ConfigError
from rlhf_jax.models import weights
from rlhf_jax.models.config import DecoderConfig
from rlhf_jax.models.convert import export_pretrained, load_pretrained, read_config
from rlhf_jax.models.rope import Rope
from rlhf_jax.models.tokenizer import byte_tokenizer
from rlhf_jax.models.transformer import Model

TIED = DecoderConfig(
    vocab_size=260,
    num_layers=2,
    d_model=8,
    num_heads=4,
    num_kv_heads=2,
    head_dim=6,
    d_ff=10,
    rope=Rope(theta=5000.0),
    norm_eps=1e-6,
    max_positions=64,
)
UNTIED = DecoderConfig(**{**{f: getattr(TIED, f) for f in TIED.__slots__}, "tie_embeddings": False})


def random_params(config):
    """Numbers that are all different, norm scales included."""
    rng = np.random.default_rng(0)
    return jax.tree.map(
        lambda s: jnp.asarray(rng.normal(size=s.shape), s.dtype), Model(config).abstract()
    )


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """Folder of an untied model, and its parameters. Copy it before changing it."""
    folder = tmp_path_factory.mktemp("export") / "policy"
    params = random_params(UNTIED)
    export_pretrained(folder, UNTIED, params, byte_tokenizer())
    return folder, params


@pytest.fixture
def broken(exported, tmp_path):
    """A copy that a test may damage."""
    return Path(shutil.copytree(exported[0], tmp_path / "broken"))


def edit_json(file, **values):
    raw = json.loads(file.read_text())
    raw.update(values)
    file.write_text(json.dumps({k: v for k, v in raw.items() if v != "absent"}))


def assert_same(found, expected):
    jax.tree.map(np.testing.assert_array_equal, found, expected)


# There and back


@pytest.mark.parametrize("config", [TIED, UNTIED], ids=["tied", "untied"])
def test_there_and_back(tmp_path, config):
    params = random_params(config)
    export_pretrained(tmp_path / "policy", config, params, byte_tokenizer())
    assert read_config(tmp_path / "policy") == config
    found_config, found = load_pretrained(tmp_path / "policy")
    assert found_config == config
    assert_same(found, params)


def test_layout_on_disk(exported):
    folder, params = exported
    tensors = load_file(folder / "model.safetensors")
    layers = params["layers"]
    for n in range(2):
        attn = f"model.layers.{n}.self_attn."
        for h in range(4):  # rows of a projection: head by head
            rows = slice(6 * h, 6 * (h + 1))
            np.testing.assert_array_equal(
                tensors[attn + "q_proj.weight"][rows], layers["attn"]["q_NDHK"][n, :, h].T
            )
            np.testing.assert_array_equal(
                tensors[attn + "o_proj.weight"][:, rows], layers["attn"]["o_NHKD"][n, h].T
            )
        np.testing.assert_array_equal(
            tensors[attn + "v_proj.weight"][6:], layers["attn"]["v_NDJK"][n, :, 1].T
        )
        np.testing.assert_array_equal(
            tensors[f"model.layers.{n}.mlp.down_proj.weight"], layers["mlp"]["down_NFD"][n].T
        )
    np.testing.assert_array_equal(tensors["lm_head.weight"], params["head"]["w_DV"].T)
    np.testing.assert_array_equal(tensors["model.embed_tokens.weight"], params["embed"]["w_VD"])


def test_padded_vocabulary_is_zeros_in_memory_and_absent_on_disk(exported, tmp_path):
    folder, params = exported
    config, padded = load_pretrained(folder, vocab_padded=264)
    assert (config.vocab_size, config.vocab_padded) == (260, 264)
    assert padded["head"]["w_DV"].shape == (8, 264)
    assert not padded["head"]["w_DV"][:, 260:].any() and not padded["embed"]["w_VD"][260:].any()
    # What training may have put there does not leave.
    padded["embed"]["w_VD"] = padded["embed"]["w_VD"].at[260:].set(1.0)
    export_pretrained(tmp_path / "policy", config, padded, byte_tokenizer())
    again_config, again = load_pretrained(tmp_path / "policy")
    assert again_config == UNTIED
    assert_same(again, params)


def test_bfloat16(exported, tmp_path):
    folder, params = exported
    config, narrow = load_pretrained(folder, dtype=jnp.bfloat16)
    assert_same(narrow, jax.tree.map(lambda x: x.astype(jnp.bfloat16), params))
    export_pretrained(tmp_path / "policy", config, narrow, byte_tokenizer())
    on_disk = load_file(tmp_path / "policy" / "model.safetensors")
    assert on_disk["model.norm.weight"].dtype == ml_dtypes.bfloat16
    assert_same(load_pretrained(tmp_path / "policy", dtype=jnp.bfloat16)[1], narrow)
    wide = load_pretrained(tmp_path / "policy")[1]
    assert_same(wide, jax.tree.map(lambda x: x.astype(jnp.float32), narrow))


def test_float16_file(exported, broken):
    tensors = load_file(broken / "model.safetensors")
    save_file({k: x.astype(np.float16) for k, x in tensors.items()}, broken / "model.safetensors")
    rounded = jax.tree.map(lambda x: x.astype(jnp.float16).astype(jnp.float32), exported[1])
    assert_same(load_pretrained(broken)[1], rounded)


def split_in_two(folder):
    """The same weights as two files and an index, as large models come."""
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = sorted(tensors)
    files = {"part-1.safetensors": names[:10], "part-2.safetensors": names[10:]}
    for file, held in files.items():
        save_file({name: tensors[name] for name in held}, folder / file)
    index = {name: file for file, held in files.items() for name in held}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))


def test_several_files(exported, broken):
    split_in_two(broken)
    assert_same(load_pretrained(broken)[1], exported[1])


# Sharding

SPECS = {
    "embed/w_VD": Spec("tensor", "fsdp"),
    "layers/attn/q_NDHK": Spec(None, "fsdp", "tensor"),
    "layers/attn/k_NDJK": Spec(None, "fsdp", "tensor"),
    "layers/attn/v_NDJK": Spec(None, None, None, "tensor"),
    "layers/attn/o_NHKD": Spec("tensor", None, None, "fsdp"),
    "layers/mlp/gate_NDF": Spec(None, None, "tensor"),
    "head/w_DV": Spec(None, ("fsdp", "tensor")),
}


@pytest.fixture
def sharding():
    devices = np.asarray(jax.devices()).reshape(2, 2, 2)
    mesh = Mesh(devices, ("data", "fsdp", "tensor"), axis_types=(AxisType.Auto,) * 3)
    return lambda path, struct: NamedSharding(mesh, SPECS.get("/".join(path), Spec()))


class Recorder:
    """Stands in for an open file and counts the numbers that are read from it."""

    def __init__(self, file, reads):
        self.file, self.reads = file, reads

    def __enter__(self):
        self.file.__enter__()
        return self

    def __exit__(self, *error):
        return self.file.__exit__(*error)

    def keys(self):
        return self.file.keys()

    def get_slice(self, name):
        return View(self.file.get_slice(name), self.reads)


class View:
    def __init__(self, view, reads):
        self.view, self.reads = view, reads
        self.get_shape, self.get_dtype = view.get_shape, view.get_dtype

    def __getitem__(self, index):
        block = self.view[index]
        self.reads.append(block.size)
        return block


def test_sharded_load_reads_each_shard_once(exported, sharding, monkeypatch):
    expected = load_pretrained(exported[0], vocab_padded=264)[1]
    reads = []
    real = weights.safe_open
    monkeypatch.setattr(weights, "safe_open", lambda *a, **kw: Recorder(real(*a, **kw), reads))
    _, params = load_pretrained(exported[0], sharding=sharding, vocab_padded=264)
    assert_same(params, expected)
    for path, x in jax.tree.leaves_with_path(params):
        path = jax.tree_util.keystr(path, simple=True, separator="/")
        assert x.sharding.spec == SPECS.get(path, Spec()), path
    # Replicas cost nothing. v's shards cut the inner letter of a group on disk, so its two halves
    # each read the rows that both are in.
    again = exported[1]["layers"]["attn"]["v_NDJK"].size
    assert sum(reads) == sum(x.size for x in jax.tree.leaves(exported[1])) + again
    assert max(reads) == 132 * 4, "a shard of the embedding [264, 8] over 2 × 2"


def test_replicas_may_be_donated(exported, sharding):
    """Replicas are made from one host array; giving one's memory away must not change another."""
    params = load_pretrained(exported[0], sharding=sharding)[1]
    x = params["layers"]["mlp"]["up_NDF"]
    expected = np.array(exported[1]["layers"]["mlp"]["up_NDF"])
    y = jax.jit(lambda x: x + 1.0, donate_argnums=0)(x)
    for shard in y.addressable_shards:
        np.testing.assert_array_equal(np.asarray(shard.data), expected + 1.0)


# Writing


def test_failed_export_leaves_what_was_there(exported, tmp_path):
    class Unwritable:
        vocab_size, bos_id, end_ids = 259, 1, (2,)

        def save(self, folder):
            raise OSError("disk full")

    folder = tmp_path / "policy"
    shutil.copytree(exported[0], folder)
    other = jax.tree.map(jnp.zeros_like, exported[1])
    with pytest.raises(OSError, match="disk full"):
        export_pretrained(folder, UNTIED, other, Unwritable())
    assert_same(load_pretrained(folder)[1], exported[1])
    assert [f.name for f in tmp_path.iterdir()] == ["policy"]

    export_pretrained(folder, UNTIED, other, byte_tokenizer())
    assert_same(load_pretrained(folder)[1], other)
    assert [f.name for f in tmp_path.iterdir()] == ["policy"]


def test_export_refuses(exported, tmp_path):
    params = exported[1]
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ConfigError, match="not a model folder"):
        export_pretrained(tmp_path, UNTIED, params, byte_tokenizer())
    small = DecoderConfig(vocab_size=100)
    with pytest.raises(ConfigError, match="259 ids, the model 100"):
        export_pretrained(tmp_path / "x", small, params, byte_tokenizer())
    with pytest.raises(ValueError, match="head/w_DV"):
        export_pretrained(tmp_path / "x", TIED, params, byte_tokenizer())
    assert not (tmp_path / "x").exists()


def test_exported_config(exported):
    raw = json.loads((exported[0] / "config.json").read_text())
    assert raw["rope_theta"] == raw["rope_parameters"]["rope_theta"] == 5000.0
    assert raw["eos_token_id"] == [2]
    assert raw["pad_token_id"] is None
    generation = json.loads((exported[0] / "generation_config.json").read_text())
    assert generation["eos_token_id"] == [2]


# Config options


@pytest.mark.parametrize(
    ("values", "theta"),
    [
        ({"rope_parameters": "absent"}, 5000.0),
        ({"rope_theta": "absent"}, 5000.0),
        ({"rope_theta": "absent", "rope_parameters": {"rope_theta": 7.0}}, 7.0),
        ({"rope_parameters": "absent", "rope_scaling": {"type": "default"}}, 5000.0),
        ({"rope_parameters": "absent", "rope_theta": "absent"}, 10000.0),
    ],
)
def test_both_spellings_of_rope(broken, values, theta):
    edit_json(broken / "config.json", **values)
    assert read_config(broken).rope.theta == theta


def test_options_left_out(broken):
    names = ("num_key_value_heads", "head_dim", "tie_word_embeddings", "hidden_act", "rms_norm_eps")
    edit_json(broken / "config.json", **dict.fromkeys(names, "absent"), attention_bias=None)
    config = read_config(broken)
    assert (config.num_kv_heads, config.head_dim, config.tie_embeddings) == (4, 2, False)
    assert config.norm_eps == 1e-6


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        (
            "model_type",
            "mamba",
            "'mamba' is not supported; supported are gemma2, .*, llama, mistral",
        ),
        ("model_type", "gemma3", "'gemma3' is not supported; supported are .*gemma3_text"),
        ("model_type", "absent", "model_type=None"),
        ("architectures", ["LlamaForSequenceClassification"], "'llama' is LlamaForCausalLM"),
        ("hidden_act", "relu", "hidden_act='relu' is not supported; supported are silu, gelu,"),
        ("attention_bias", True, r"tensor model.layers.0.self_attn.q_proj.bias and 7 more is miss"),
        ("mlp_bias", True, "tensor model.layers.0.mlp.gate_proj.bias"),
        ("attention_dropout", 0.1, "attention_dropout=0.1"),
        ("pretraining_tp", 2, "pretraining_tp=2"),
        ("quantization_config", {"bits": 4}, "quantization_config"),
        ("partial_rotary_factor", 0.5, "partial_rotary_factor=0.5"),
        ("rope_parameters", {"rope_type": "mrope"}, "'mrope' .*supported are default, linear, dyn"),
        ("rope_scaling", {"type": "linear", "factor": 2.0}, "rope_type='linear' contradicts"),
        ("rope_scaling", "yarn", "rope_scaling='yarn'"),
        ("rope_parameters", {"rope_type": "llama3", "rope_theta": 5e3}, "factor, low_freq_factor,"),
        (
            "rope_parameters",
            {"rope_type": "linear", "factor": 2.0, "mrope_section": [1]},
            "mrope_s",
        ),
        ("rope_parameters", {"rope_type": "linear", "factor": -2.0}, "factor=-2.0 is outside"),
        ("rope_parameters", {"full": {"rope_theta": 5000.0}}, "one for all layers"),
        ("rope_parameters", {"rope_theta": 7.0}, "rope_theta=5000.0 contradicts"),
        ("rope_theta", -1.0, "contradicts|rope_theta"),
        ("hidden_size", "absent", "lacks hidden_size"),
        ("hidden_size", "eight", "d_model='eight'"),
        ("num_key_value_heads", 3, "num_kv_heads=3 does not divide"),
    ],
)
def test_unsupported_option_is_named(broken, option, value, message):
    edit_json(broken / "config.json", **{option: value})
    with pytest.raises(ConfigError, match=message) as error:
        load_pretrained(broken)
    assert "config.json" in str(error.value) or "tensor" in message


# Damaged folders


def test_no_folder_or_config(tmp_path, broken):
    with pytest.raises(ConfigError, match="nowhere is not a folder"):
        load_pretrained(tmp_path / "nowhere")
    with pytest.raises(ConfigError, match=r"config.json is not a folder"):
        load_pretrained(broken / "config.json")
    (broken / "config.json").write_text('{"model_type": "lla')
    with pytest.raises(ConfigError, match=r"config.json cannot be read as JSON"):
        load_pretrained(broken)
    (broken / "config.json").write_text("[]")
    with pytest.raises(ConfigError, match="not a JSON object"):
        load_pretrained(broken)
    (broken / "config.json").unlink()
    with pytest.raises(ConfigError, match=r"config.json is missing"):
        load_pretrained(broken)


@pytest.mark.parametrize("keep", [0, 5, 200, -100])
def test_truncated_weights(broken, keep):
    file = broken / "model.safetensors"
    file.write_bytes(file.read_bytes()[:keep])
    with pytest.raises(ConfigError, match=r"model.safetensors is cut short or corrupt"):
        load_pretrained(broken)


def test_no_weights(broken):
    (broken / "model.safetensors").rename(broken / "pytorch_model.bin")
    with pytest.raises(ConfigError, match="only safetensors"):
        load_pretrained(broken)


NORM, GATE = "model.norm.weight", "model.layers.1.mlp.gate_proj.weight"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.pop(GATE), f"tensor {GATE} is missing"),
        (lambda t: (t.pop(GATE), t.pop(NORM)), f"tensor {GATE} and 1 more is missing"),
        (lambda t: t.update(extra=t[NORM]), "extra is in the file but not"),
        (lambda t: t.update({NORM: t[NORM][:4].copy()}), rf"{NORM} has shape \[4\].*\(8,\)"),
        (lambda t: t.update({GATE: t[GATE].T.copy()}), rf"{GATE} has shape \[8, 10\]"),
        (lambda t: t.update({NORM: t[NORM].astype(np.int8)}), f"{NORM} is I8; supported: F32"),
    ],
)
def test_wrong_tensor_is_named(broken, change, message):
    tensors = load_file(broken / "model.safetensors")
    change(tensors)
    save_file(tensors, broken / "model.safetensors")
    with pytest.raises(ConfigError, match=message):
        load_pretrained(broken)


def test_wrong_index_is_named(broken):
    split_in_two(broken)
    index = broken / "model.safetensors.index.json"
    names = json.loads(index.read_text())["weight_map"]
    edit_json(index, weight_map={**names, GATE: "part-1.safetensors"})
    with pytest.raises(ConfigError, match=rf"part-1.safetensors lacks {GATE}"):
        load_pretrained(broken)
    edit_json(index, weight_map=names)
    (broken / "part-2.safetensors").unlink()
    with pytest.raises(ConfigError, match=r"part-2.safetensors is missing"):
        load_pretrained(broken)
    edit_json(index, weight_map="absent")
    with pytest.raises(ConfigError, match="no weight_map"):
        load_pretrained(broken)


def test_tensors_that_hold_nothing_new(exported, tmp_path):
    folder = tmp_path / "tied"
    params = random_params(TIED)
    export_pretrained(folder, TIED, params, byte_tokenizer())
    tensors = load_file(folder / "model.safetensors")
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = np.ones(3, np.float32)
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].copy()
    save_file(tensors, folder / "model.safetensors")
    assert_same(load_pretrained(folder)[1], params)
    tensors["lm_head.weight"][0, 0] += 1.0  # a tied config that its own weights contradict
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(ConfigError, match=r"lm_head.weight is in the file but not"):
        load_pretrained(folder)


# transformers as the judge


def test_transformers_loads_the_export(exported):
    torch = pytest.importorskip("torch", reason="transformers needs torch to run a model")
    transformers = pytest.importorskip("transformers")
    folder, params = exported
    text = "One day, Lily"
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, local_files_only=True)
    assert model.generation_config.eos_token_id == [2]
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
    ids_BT = np.asarray([tokenizer(text).input_ids])
    assert ids_BT.tolist() == [byte_tokenizer().encode(text)]
    with torch.no_grad():
        expected_BTV = model(torch.from_numpy(ids_BT)).logits.numpy()
    ours = Model(UNTIED)
    hidden_BTD = ours.hidden(params, jnp.asarray(ids_BT), jnp.ones(ids_BT.shape, bool))
    found_BTV = ours.logits(params, hidden_BTD)
    np.testing.assert_allclose(found_BTV, expected_BTV, atol=1e-4 * np.abs(expected_BTV).max())
