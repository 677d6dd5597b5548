#!/usr/bin/env python3
"""Lists the public items of a crate from rustdoc's JSON, one a line, sorted: public_api.py FILE [FILE OF A CRATE WHOSE ITEMS IT NAMES]...

Items that it re-exports from the other crates are listed with all they have, and those from elsewhere by name."""

import json
import sys

DOC, *OTHERS = (json.load(open(path, encoding="utf-8")) for path in sys.argv[1:])
INDEX = DOC["index"]
LINES = set()


def item(number):
    return INDEX.get(str(number))


def args(found):
    if not found:
        return ""
    if "angle_bracketed" in found:
        inner = found["angle_bracketed"]
        parts = [arg(one) for one in inner["args"]]
        parts += [f"{one['name']}{args(one.get('args'))} = {bound_or_type(one['binding'])}" for one in inner["constraints"]]
        return f"<{', '.join(parts)}>" if parts else ""
    if "parenthesized" in found:
        inner = found["parenthesized"]
        output = f" -> {kind(inner['output'])}" if inner["output"] else ""
        return f"({', '.join(kind(one) for one in inner['inputs'])}){output}"
    return ""


def arg(one):
    if isinstance(one, str):
        return "_"
    ((name, value),) = one.items()
    if name == "type":
        return kind(value)
    return value if name == "lifetime" else str(value.get("expr", "_"))


def bound_or_type(binding):
    ((name, value),) = binding.items()
    return bounds(value) if name == "constraint" else kind(value.get("type") or value)


def path(found):
    return found.get("path", found.get("name", "")).split("::")[-1] + args(found.get("args"))


def bounds(found):
    texts = []
    for one in found:
        if "trait_bound" in one:
            modifier = {"maybe": "?"}.get(one["trait_bound"]["modifier"], "")
            texts.append(modifier + path(one["trait_bound"]["trait"]))
        elif "outlives" in one:
            texts.append(one["outlives"])
    return " + ".join(texts)


def kind(found):
    if isinstance(found, str):
        return "_"
    ((name, value),) = found.items()
    match name:
        case "resolved_path":
            return path(value)
        case "generic" | "primitive":
            return value
        case "borrowed_ref":
            lifetime = f"{value['lifetime']} " if value["lifetime"] else ""
            return f"&{lifetime}{'mut ' if value['is_mutable'] else ''}{kind(value['type'])}"
        case "tuple":
            return f"({', '.join(kind(one) for one in value)})"
        case "slice":
            return f"[{kind(value)}]"
        case "array":
            return f"[{kind(value['type'])}; {value['len']}]"
        case "impl_trait":
            return f"impl {bounds(value)}"
        case "dyn_trait":
            traits = [path(one["trait"]) for one in value["traits"]]
            return f"dyn {' + '.join(traits + ([value['lifetime']] if value['lifetime'] else []))}"
        case "qualified_path":
            trait = value.get("trait")
            of = kind(value["self_type"])
            return f"<{of} as {path(trait)}>::{value['name']}" if trait and trait.get("path") else f"{of}::{value['name']}"
        case "function_pointer":
            return f"fn{signature(value['sig'])}"
        case "raw_pointer":
            return f"*{kind(value['type'])}"
    return name


def signature(sig):
    inputs = []
    for name, one in sig["inputs"]:
        shown = kind(one)
        inputs.append({"Self": "self", "&Self": "&self", "&mut Self": "&mut self"}.get(shown, shown) if name == "self" else shown)
    output = f" -> {kind(sig['output'])}" if sig["output"] else ""
    return f"({', '.join(inputs)}){output}"


def generics(found):
    """Parameters with their bounds; those that the compiler made for `impl Trait` are left out."""
    where = {}
    for one in found["where_predicates"]:
        if "bound_predicate" in one:
            predicate = one["bound_predicate"]
            where.setdefault(kind(predicate["type"]), []).append(bounds(predicate["bounds"]))
    parts = []
    for one in found["params"]:
        if "type" in one["kind"] and not one["kind"]["type"].get("is_synthetic"):
            own = [bounds(one["kind"]["type"]["bounds"])] if one["kind"]["type"]["bounds"] else []
            limits = " + ".join(own + where.pop(one["name"], []))
            parts.append(f"{one['name']}: {limits}" if limits else one["name"])
        elif "const" in one["kind"]:
            parts.append(f"const {one['name']}")
    parts += [f"{of}: {' + '.join(limits)}" for of, limits in where.items()]
    return f"<{', '.join(parts)}>" if parts else ""


def function(name, found, prefix):
    inner = found["inner"]["function"]
    words = "async " if inner["header"]["is_async"] else ""
    words += "const " if inner["header"]["is_const"] else ""
    LINES.add(f"{words}fn {prefix}{name}{generics(inner['generics'])}{signature(inner['sig'])}")


def implementations(name, numbers):
    for number in numbers:
        found = item(number)
        inner = found["inner"]["impl"] if found else None
        if not inner or inner["is_synthetic"] or inner["blanket_impl"]:
            continue
        if inner["trait"]:
            LINES.add(f"impl{generics(inner['generics'])} {path(inner['trait'])} for {name}")
            continue
        for method in inner["items"]:
            walk(method, f"{name}::")


def fields(name, numbers):
    for number in numbers:
        if number is not None and (found := item(number)) and found["visibility"] in ("public", "default"):
            LINES.add(f"field {name}::{found['name']}: {kind(found['inner']['struct_field'])}")


def data(words, name, found, inner):
    exhaustive = "" if any("non_exhaustive" in str(one) for one in found["attrs"]) else "exhaustive "
    own = inner.get("kind")
    if words == "struct":
        shown = []
        if isinstance(own, dict):
            shown = own["plain"]["fields"] if "plain" in own else own["tuple"]
            hidden = own.get("plain", {}).get("has_stripped_fields") or None in shown
        exhaustive = exhaustive if shown and not hidden else ""
        fields(name, shown)
    LINES.add(f"{exhaustive}{words} {name}{generics(inner['generics'])}")
    for number in inner.get("variants", []):
        if variant := item(number):
            of = f"{name}::{variant['name']}"
            LINES.add(f"variant {of}")
            parts = variant["inner"]["variant"]["kind"]
            if isinstance(parts, dict):
                fields(of, parts["tuple"] if "tuple" in parts else parts["struct"]["fields"])
    implementations(name, inner["impls"])


def members(doc, number):
    """The public items of a module: their numbers by the names under which it shows them."""
    for one in doc["index"][str(number)]["inner"]["module"]["items"]:
        found = doc["index"].get(str(one))
        inner = found["inner"].get("use") if found else None
        if found and (not inner or not inner["is_glob"]):
            yield (inner["name"], inner["id"]) if inner else (found["name"], one)


def elsewhere(source):
    """The crate and the number of an item of another crate, by its path."""
    first, *rest = source.split("::")
    for doc in OTHERS:
        number = doc["root"]
        if doc["index"][str(number)]["name"] != first:
            continue
        for name in rest:
            number = dict(members(doc, number)).get(name)
        if number is not None and str(number) in doc["index"]:
            return doc, number
    return None


def walk_elsewhere(doc, number, prefix):
    global INDEX
    own, INDEX = INDEX, doc["index"]
    walk(number, prefix)
    INDEX = own


def walk(number, prefix):
    found = item(number)
    if not found:
        return
    ((what, inner),) = found["inner"].items()
    name = f"{prefix}{found['name']}"
    match what:
        case "use":
            target = item(inner["id"])
            if target and target["crate_id"] == 0 and not inner["is_glob"]:
                walk(inner["id"], prefix)
            elif inner["is_glob"] and target:
                for one in target["inner"]["module"]["items"]:
                    walk(one, prefix)
            elif other := elsewhere(inner["source"]):
                walk_elsewhere(*other, prefix)
            else:
                LINES.add(f"use {prefix}{inner['name']} = {inner['source']}")
        case "module":
            for one in inner["items"]:
                walk(one, f"{name}::")
        case "function":
            function(found["name"], found, prefix)
        case "struct" | "enum" | "union":
            data(what, name, found, inner)
        case "trait":
            LINES.add(f"trait {name}{generics(inner['generics'])}: {bounds(inner['bounds'])}")
            for one in inner["items"]:
                walk(one, f"{name}::")
        case "constant":
            LINES.add(f"const {name}: {kind(inner['type'])}")
        case "assoc_const":
            LINES.add(f"const {name}: {kind(inner['type'])}")
        case "assoc_type":
            LINES.add(f"type {name}")
        case "type_alias":
            LINES.add(f"type {name}{generics(inner['generics'])} = {kind(inner['type'])}")
        case "macro":
            LINES.add(f"macro {name}")


root = item(DOC["root"])
for one in root["inner"]["module"]["items"]:
    walk(one, f"{root['name']}::")
print("\n".join(sorted(LINES)))
