"""Writes golden values as JSON: every tensor as its shape and its values in row-major order."""
import json
from pathlib import Path


def tensor(value):
    """Returns {"shape": [...], "values": [...]} of a tensor of torch or numpy. Integers stay integers."""
    flat = getattr(value, "detach", lambda: value)().reshape(-1).tolist()
    return {"shape": list(value.shape), "values": flat}


def rounded(node, digits):
    if isinstance(node, dict):
        return {key: rounded(child, digits) for key, child in node.items()}
    if isinstance(node, (list, tuple)):
        return [rounded(child, digits) for child in node]
    return float(f"{node:.{digits}g}") if isinstance(node, float) else node


def write(path, content, digits=17):
    """Writes one tensor per line, so that a difference between two versions can be read. 17 significant digits read
    back as the same float64. Seven are enough where the program computes in fp32."""
    content = rounded(content, digits)

    def lines(node, indent):
        if isinstance(node, dict) and set(node) not in ({"shape", "values"}, {"norm", "values"}):
            inner = ",\n".join(f"{' ' * (indent + 1)}{json.dumps(key)}: {lines(child, indent + 1)}" for key, child in node.items())
            return "{\n" + inner + "\n" + " " * indent + "}"
        if isinstance(node, list) and node and isinstance(node[0], dict):
            return "[\n" + ",\n".join(" " * (indent + 1) + lines(child, indent + 1) for child in node) + "\n" + " " * indent + "]"
        return json.dumps(node)
    Path(path).write_text(lines(content, 0) + "\n")
    print(f"wrote {path}")
