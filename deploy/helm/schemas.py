#!/usr/bin/env python3
"""Makes JSON schemas for kubeconform, one file for each kind.

usage: schemas.py OUT FILE...

A FILE is the swagger.json of Kubernetes (api/openapi-spec in the module k8s.io/kubernetes) or a CustomResourceDefinition. Each
schema is self-contained and rejects unknown fields. Its name is kubeconform's {{.ResourceKind}}{{.KindSuffix}}.
"""
import json
import pathlib
import sys

import yaml

REF = "#/definitions/"
INT_OR_STRING = {"anyOf": [{"type": "integer"}, {"type": "string"}]}
# The swagger defines both as strings, but manifests may use numbers.
SCALARS = {
    "io.k8s.apimachinery.pkg.util.intstr.IntOrString": INT_OR_STRING,
    "io.k8s.apimachinery.pkg.api.resource.Quantity": {"anyOf": [{"type": "number"}, {"type": "string"}]},
}


def strict(node):
    """Returns the schema with additional properties forbidden in every object that defines its fields."""
    if isinstance(node, list):
        return [strict(n) for n in node]
    if not isinstance(node, dict):
        return node
    if node.get("x-kubernetes-int-or-string") is True:
        return INT_OR_STRING
    fields = node.get("properties")
    # A field may itself be named "properties". Its value is then a schema, not a mapping of schemas.
    closed = isinstance(fields, dict) and all(isinstance(f, dict) for f in fields.values())
    out = {k: strict(v) for k, v in node.items() if not k.startswith("x-kubernetes-")}
    if closed and "additionalProperties" not in node and not node.get("x-kubernetes-preserve-unknown-fields"):
        out["additionalProperties"] = False
    return out


def names(node):
    """Yields the names of the definitions that a schema refers to."""
    if isinstance(node, dict):
        if isinstance(node.get("$ref"), str):
            yield node["$ref"].removeprefix(REF)
        node = list(node.values())
    if isinstance(node, list):
        for n in node:
            yield from names(n)


def reachable(schema, definitions):
    found, todo = {}, [schema]
    while todo:
        for name in names(todo.pop()):
            if name not in found:
                found[name] = definitions[name]
                todo.append(definitions[name])
    return found


def from_swagger(swagger):
    """Yields group, version, kind and schema of everything that the API server accepts."""
    definitions = {name: SCALARS.get(name) or strict(d) for name, d in swagger["definitions"].items()}
    for name, original in swagger["definitions"].items():
        for gvk in original.get("x-kubernetes-group-version-kind", []):
            if "apiVersion" not in original.get("properties", {}):
                continue  # not an object of its own, such as a watch event
            schema = dict(definitions[name])
            schema["definitions"] = reachable(schema, definitions)
            yield gvk["group"], gvk["version"], gvk["kind"], schema


def from_crd(crd):
    for version in crd["spec"]["versions"]:
        yield crd["spec"]["group"], version["name"], crd["spec"]["names"]["kind"], strict(version["schema"]["openAPIV3Schema"])


def main(out, *files):
    out = pathlib.Path(out)
    out.mkdir(parents=True, exist_ok=True)
    count = 0
    for file in files:
        text = pathlib.Path(file).read_text()
        source = json.loads(text) if file.endswith(".json") else yaml.safe_load(text)
        kinds = from_crd(source) if source.get("kind") == "CustomResourceDefinition" else from_swagger(source)
        for group, version, kind, schema in kinds:
            schema["properties"] = schema["properties"] | {
                "apiVersion": {"const": f"{group}/{version}" if group else version},
                "kind": {"const": kind},
            }
            schema["required"] = sorted({"apiVersion", "kind", *schema.get("required", [])})
            name = "-".join(part for part in (kind.lower(), group.split(".")[0], version) if part)
            (out / f"{name}.json").write_text(json.dumps(schema))
            count += 1
    print(f"{count} schemas in {out}")


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
