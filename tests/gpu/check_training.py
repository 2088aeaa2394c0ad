"""Checks that train small networks: three starts with resume, and two ranks on one GPU."""
import array

from check_run import DATA_TOOL, RINGTRAIN, ROOT, outcome


def names(run):
    """Makes a small data set of names."""
    run.need(RINGTRAIN, DATA_TOOL)
    if "names" not in run.data:
        words = [a + b + c for a in ("an", "be", "ca", "do", "el", "fi", "go", "hu") for b in ("la", "mi", "no", "ru", "sa")
                 for c in ("", "n", "ra", "th", "x")]
        file, prefix = run.scratch / "names.txt", run.scratch / "names"
        file.write_text("\n".join(words) + "\n")
        code, text = run.call([DATA_TOOL, "names", file, "--out", prefix, "--force"], 20)
        if code != 0:
            raise RuntimeError("the data set was not made:\n" + text)
        run.data["names"] = prefix
    return f"model: {{hidden: 64, layers: 2, dropout: 0.1}}\ndata: {{train: {run.data['names']}-train}}"


def small_pictures(run):
    """Makes a data set of a few 32 x 32 pictures in two classes."""
    from bench_gpu import write_png
    run.need(RINGTRAIN, DATA_TOOL)
    if "pictures" not in run.data:
        folder, prefix = run.scratch / "pictures", run.scratch / "small"
        for number in range(80):
            place = folder / f"class_{number % 2}"
            place.mkdir(parents=True, exist_ok=True)
            write_png(place / f"{number}.png", 32, 32, number)
        code, text = run.call([DATA_TOOL, "images", folder, "--out", prefix, "--encoding", "raw", "--size", 32, "--force"], 20)
        if code != 0:
            raise RuntimeError("the data set was not made:\n" + text)
        run.data["pictures"] = prefix
    return (f"model: {{kind: resnet, depth: 18, width: 16, stem: small}}\nprecision: {'fp32' if run.dry else 'bf16'}\n"
            f"data: {{train: {run.data['pictures']}-train, image_size: 32}}")


def experiment(run, model, folder, *more):
    file = run.scratch / "experiment.yaml"
    file.write_text(f"""name: check
{model}
batch: {{global: {16 if run.dry else 64}, worker: {8 if run.dry else 16}}}
checkpoint: {{every_steps: 2, keep: 3}}
""")
    return [RINGTRAIN, "train", file, f"run.dir={run.scratch / folder}", f"machine.device={'cpu' if run.dry else 'cuda'}", "machine.search_seconds=2",
            f"machine.plan_cache={run.test_plans}", *run.off_options(), *more]


def exported(run, folder):
    target = run.scratch / f"{folder}.safetensors"
    code, text = run.call([RINGTRAIN, "export", run.scratch / folder, "--newest", "--force", "--out", target], 20)
    if code != 0:
        raise RuntimeError("the weights were not exported:\n" + text)
    return target.read_bytes()


def floats_of(safetensors):
    """Returns all values of a safetensors file of fp32 tensors. The file holds eight bytes with the length of a header,
    the header, and the values."""
    values = array.array("f")
    values.frombytes(safetensors[8 + int.from_bytes(safetensors[:8], "little"):])
    return values


def resume(model):
    """Trains six steps in one start and in three starts, of which two resume. The bytes of the weights must be the
    same."""
    def check(run, seconds):
        run.need_gpu()
        text_of_model, name, end = model(run), model.__name__, run.clock.now() + seconds
        for folder, *more in (("whole", "stop.steps=6"), ("parts", "stop.steps=2"), ("parts", "stop.steps=4", "--resume"),
                              ("parts", "stop.steps=6", "--resume")):
            code, text = run.call(experiment(run, text_of_model, f"{name}-{folder}", *more), end - run.clock.now())
            if code != 0:
                return outcome(code, text)
        same = exported(run, f"{name}-whole") == exported(run, f"{name}-parts")
        return {"status": "passed" if same else "failed", "said": ["the weights are the same bytes" if same else "the weights differ"]}
    return check


def shared_gpu(run, seconds):
    """Trains with two ranks on one GPU, with sums through host memory. The weights must be those of one rank
    up to rounding."""
    run.need_gpu()
    model, weights, end = names(run), [], run.clock.now() + seconds
    for count in (1, 2):
        folder = f"ranks-{count}"
        command = experiment(run, model, folder, "stop.steps=10", "communication.library=mpi", "run.log_every_steps=1")
        code, text = run.call([ROOT / "tests/mpirun.sh", count, *command], end - run.clock.now())
        if code != 0:
            return outcome(code, text)
        weights.append(exported(run, folder))
    one, two = map(floats_of, weights)
    difference = (sum((a - b) ** 2 for a, b in zip(one, two)) / sum(b * b for b in two)) ** 0.5
    good = len(one) == len(two) and difference < 1e-4
    return {"status": "passed" if good else "failed", "said": [f"relative difference of the weights {difference:.2g}"]}
