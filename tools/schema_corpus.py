"""JSON schemas of real programs, and an independent judgement of documents that were made from them.

    python tools/schema_corpus.py collect DOWNLOADS SCHEMAS      # packages are named below; fetch them first
    python tools/schema_corpus.py bench JSONSCHEMABENCH SCHEMAS  # in place of `collect`: the cases of a checkout of JSONSchemaBench
    cargo run --release -p brasa-grammar --example masks -- VOCABULARY.gguf.xz SCHEMAS DOCUMENTS
    python tools/schema_corpus.py judge SCHEMAS DOCUMENTS REPORT

`collect` reads packages as `pip download --no-deps` and `npm pack` leave them, and refuses others than those named here by their
SHA-256. `bench` takes those of MaskBench's cases that are of the ten sets of JSONSchemaBench; each is a schema with instances. `judge` validates
every document and every instance with the package `jsonschema`, with its checks of formats, and writes one line for each schema.
"""

import collections
import hashlib
import json
import pathlib
import re
import sys
import tarfile
import zipfile

# Package file, licence, SHA-256.
PACKAGES = [
    (
        "check_jsonschema-0.39.0-py3-none-any.whl",
        "Apache-2.0; schemas of their projects, most of them Apache-2.0 or MIT",
        "14ce5c94871c551268ea948ffe21e9f1464dc48fb20bf9a4c13deeaaf756cf9b",
    ),
    (
        "cfn_lint-1.58.0-py3-none-any.whl",
        "MIT-0",
        "9d9f06043160756a6158f5c3f92a44ce38254b1c578127461608305bc8262987",
    ),
    (
        "kubernetes_validate-1.37.0-py3-none-any.whl",
        "Apache-2.0",
        "85136d018a27b50ec7fc049d902bfa5193f5976807e6c0f408e3ab6fe078cad9",
    ),
    (
        "octokit-webhooks-schemas-7.6.1.tgz",
        "MIT",
        "94be9136c02e5246912d6a4b1f178f8d5430ae36839e46ecfcad0020f42f33ca",
    ),
    (
        "altair-6.3.0-py3-none-any.whl",
        "BSD-3-Clause",
        "7defb6ca730676dfc99a299768e2769f51585fcb3dc960ea71aacc368929d65e",
    ),
    (
        "nbformat-5.11.1-py3-none-any.whl",
        "BSD-3-Clause",
        "cc6698fa75f4fab8755ead786317815f13a6fee3b53311c0abb1a8b51d52f7ec",
    ),
    (
        "cyclonedx_python_lib-11.12.0-py3-none-any.whl",
        "Apache-2.0",
        "0e807521a921a5c3cb8ce1153f8a61d29eedfe76a46aac2796b7c6b573391a54",
    ),
]


def files(path):
    """Names and contents of the JSON files of a package."""
    if path.suffix == ".tgz":
        with tarfile.open(path) as archive:
            for member in archive:
                if member.name.endswith(".json"):
                    yield member.name, archive.extractfile(member).read()
        return
    with zipfile.ZipFile(path) as archive:
        for name in sorted(archive.namelist()):
            if name.endswith(".json"):
                yield name, archive.read(name)


def referred(schema, definitions, kept):
    """Copies the definitions that a schema needs into `kept`."""
    if isinstance(schema, dict):
        reference = schema.get("$ref")
        name = reference.rsplit("/", 1)[-1] if isinstance(reference, str) else None
        if name in definitions and name not in kept:
            kept[name] = definitions[name]
            referred(definitions[name], definitions, kept)
        for value in schema.values():
            referred(value, definitions, kept)
    elif isinstance(schema, list):
        for value in schema:
            referred(value, definitions, kept)


def local(schema):
    """Kubernetes' references into its file of definitions as references of one document."""
    if isinstance(schema, dict):
        return {
            key: "#" + value.split("#", 1)[1] if key == "$ref" and isinstance(value, str) else local(value)
            for key, value in schema.items()
        }
    return [local(value) for value in schema] if isinstance(schema, list) else schema


def schemas_of(package, contents):
    """Names and schemas of a package. Large families are sampled at even distances, in the order of their names."""
    found = {name: json.loads(data) for name, data in contents}
    if package.startswith("check_jsonschema"):
        found = {name: value for name, value in found.items() if "/vendor/" in name}
    elif package.startswith("cfn_lint"):
        found = {name: value for name, value in found.items() if "/schemas/resources/" in name}
        found = dict(sorted(found.items())[::5])
    elif package.startswith("kubernetes"):
        folder = "kubernetes_validate/kubernetes-json-schema/v1.37.0-local/"
        definitions = local(found[folder + "_definitions.json"])["$defs"]
        names = sorted(name for name in found if name.startswith(folder) and "/_" not in name)[::4]
        chosen = {}
        for name in names:
            schema = local(found[name])
            kept = {}
            referred(schema, definitions, kept)
            chosen[name] = schema | {"$defs": kept}
        found = chosen
    elif package.startswith("octokit"):
        whole = found["package/schema.json"]
        definitions = whole["definitions"]
        found = {}
        for name in sorted(name for name in definitions if "$" in name)[::2]:
            kept = {}
            referred(definitions[name], definitions, kept)
            found[name] = {"$schema": whole["$schema"]} | definitions[name] | {"definitions": kept}
    for name, schema in found.items():
        if isinstance(schema, dict) and ({"$ref", "type", "properties", "oneOf", "anyOf", "allOf"} & schema.keys()):
            yield name.rsplit("/", 1)[-1].removesuffix(".json"), schema


def collect(downloads, target):
    target.mkdir(parents=True, exist_ok=True)
    for package, _, expected in PACKAGES:
        path = downloads / package
        found = hashlib.sha256(path.read_bytes()).hexdigest()
        if found != expected:
            sys.exit(f"{package}: SHA-256 {found}, expected {expected}")
        count = 0
        for name, schema in schemas_of(package, files(path)):
            family = package.split("-")[0]
            (target / f"{family}.{name.replace('$', '.')}.json").write_text(json.dumps(schema))
            count += 1
        print(f"{package}: {count} schemas")


# The sets of JSONSchemaBench.
BENCH = ["Github_trivial", "Github_easy", "Github_medium", "Github_hard", "Github_ultra", "Glaiveai2K", "JsonSchemaStore", "Kubernetes",
         "Snowplow", "WashingtonPost"]


def bench(checkout, target):
    target.mkdir(parents=True, exist_ok=True)
    counts = collections.Counter()
    for path in sorted((checkout / "maskbench" / "data").iterdir()):
        family = path.name.split("---")[0]
        if family in BENCH:
            (target / path.name).write_bytes(path.read_bytes())
            counts[family] += 1
    print(*(f"{family}: {count} schemas" for family, count in counts.items()), sep="\n")


def validators(schema):
    """The validator of a schema, and another one that reads `oneOf` as `anyOf`. Formats are checked by the newest draft's rules."""
    from jsonschema.validators import Draft202012Validator, extend, validator_for

    strict = validator_for(schema, default=Draft202012Validator)
    # A checker without a draft takes draft 3's times, which have no time zone.
    formats = Draft202012Validator.FORMAT_CHECKER
    relaxed = extend(strict, {"oneOf": Draft202012Validator.VALIDATORS["anyOf"]})
    return strict(schema, format_checker=formats), relaxed(schema, format_checker=formats)


# Reasons for which the validator cannot judge: Python's regular expressions lack what ECMA's have.
UNJUDGED = re.error


def judge(schemas, documents, report):
    lines, counts, reasons = [], collections.Counter(), collections.Counter()
    for line in documents.read_text().rstrip("\n").split("\n"):
        entry = json.loads(line)
        name, error = entry["schema"], entry.get("error")
        family = name.split("---")[0].split(".")[0]
        if error is not None:
            counts[family, "refused"] += 1
            keyword = error.split("`")[1] if "is not supported" in error and "`" in error else "other"
            reasons[keyword] += 1
            lines.append(f"refused {name}: {' '.join(error.split())[:160]}")
            continue
        schema = json.loads((schemas / f"{name}.json").read_text())
        tests = schema["tests"] if "schema" in schema and isinstance(schema.get("tests"), list) else []
        if "schema" in schema and "tests" in schema:
            schema = schema["schema"]
        # A `oneOf` that is read as `anyOf` is told of, and its documents may be right by several branches.
        is_coerced = bool(entry.get("warnings"))
        coerced = " of coerced schemas" if is_coerced else ""
        strict, relaxed = validators(schema)

        def problem_of(value):
            """The reason why a value is wrong, and the same if it may be right by several branches."""
            problem = next(iter(strict.iter_errors(value)), None)
            problem = problem and f"{problem.message[:120]} at {problem.json_path}"
            return problem, problem if not is_coerced or problem is None or not relaxed.is_valid(value) else None

        verdict, several = "valid", False
        for text in entry["documents"]:
            counts[f"documents{coerced}"] += 1
            try:
                strictly, problem = problem_of(json.loads(text))
            except UNJUDGED:
                counts["documents that the validator cannot judge"] += 1
                continue
            except (ValueError, RecursionError) as failure:
                strictly = problem = f"{type(failure).__name__}: {failure}"
            if problem:
                counts[f"documents{coerced} wrong"] += 1
                verdict = f"WRONG ({' '.join(problem.split())[:200]})"
            elif strictly:
                counts[f"documents{coerced} right by several branches of oneOf"] += 1
                several = True
        for test, allowed in zip(tests, entry.get("allowed", [])):
            try:
                strictly, problem = problem_of(test["data"])
            except (UNJUDGED, ValueError, RecursionError):
                counts["instances that the validator cannot judge"] += 1
                continue
            said = "wrong" if problem else "right by several branches of oneOf" if strictly else "right"
            counts[f"instances{coerced} {said}, {'allowed' if allowed else 'refused'}"] += 1
            if allowed and problem:
                verdict = f"WRONG (instance {json.dumps(test['data'])[:160]})"
            several |= allowed and said.startswith("right by")
        if is_coerced:
            counts[family, "coerced"] += 1
        if several and verdict == "valid":
            verdict = "several"
        if entry["unfinished"]:
            counts["documents unfinished"] += entry["unfinished"]
            verdict += f", {entry['unfinished']} unfinished: {entry['why']}"
        if not entry["documents"] and verdict.startswith("valid"):
            verdict = "none" + verdict[5:]
        word = verdict.split(" ")[0]
        counts[family, word.strip(",")] += 1
        lines.append(f"{word.strip(',')} {name}{verdict[len(word):]}")
    totals = collections.Counter()
    for key, count in counts.items():
        if isinstance(key, tuple):
            totals[f"all {key[1]}"] += count
    summary = [f"{' '.join(key) if isinstance(key, tuple) else key}: {count}" for key, count in sorted(counts.items(), key=str)]
    summary += [f"{key}: {count}" for key, count in sorted(totals.items())]
    summary += [f"refused for {keyword}: {count}" for keyword, count in reasons.most_common()]
    print("\n".join(summary))
    report.write_text("\n".join(sorted(lines)) + "\n")


if __name__ == "__main__":
    command, *paths = sys.argv[1:]
    {"collect": collect, "bench": bench, "judge": judge}[command](*map(pathlib.Path, paths))
