#!/usr/bin/env python3
"""The packages that the program `coordinator` consists of, as SPDX 2.3 in JSON: scripts/spdx.py > FILE

Those that `cargo metadata` lists for it on Linux on x86-64, without what only builds and tests need, and
hwloc, which is linked in. Names, versions and licenses are those that the packages declare; checksums
are those of Cargo.lock. The time is SOURCE_DATE_EPOCH, or that of the last commit; the same sources have
the same list. Needs Python 3.11.
"""

import hashlib
import json
import os
import subprocess
import sys
import time
import tomllib
import uuid
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROGRAM = "coordinator"
TARGET = "x86_64-unknown-linux-gnu"


def output(*command):
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout


def created():
    """The time of the list, in UTC."""
    seconds = os.environ.get("SOURCE_DATE_EPOCH") or output("git", "log", "-1", "--format=%ct")
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(int(seconds)))


def linked(metadata):
    """Ids of the packages in the program, and for each the ids of those that it depends on."""
    nodes = {node["id"]: node for node in metadata["resolve"]["nodes"]}
    kinds = {
        package["id"]: {kind for target in package["targets"] for kind in target["kind"]}
        for package in metadata["packages"]
    }
    (root,) = [package["id"] for package in metadata["packages"] if package["name"] == PROGRAM]
    edges, left = {}, [root]
    while left:
        package = left.pop()
        if package in edges:
            continue
        edges[package] = sorted(
            dependency["pkg"]
            for dependency in nodes[package]["deps"]
            if any(kind["kind"] is None for kind in dependency["dep_kinds"])
            # Macros run in the compiler.
            and "proc-macro" not in kinds[dependency["pkg"]]
        )
        left.extend(edges[package])
    return root, edges


def checksums():
    """SHA-256 of a package of the registry, by its name and version."""
    lock = tomllib.loads((ROOT / "Cargo.lock").read_text())
    return {(each["name"], each["version"]): each.get("checksum") for each in lock["package"]}


def described(name, version, license, purl=None, checksum=None):
    package = {
        "SPDXID": f"SPDXRef-{name}-{version}".replace("_", "-").replace("+", "-"),
        "name": name,
        "versionInfo": version,
        "downloadLocation": "NOASSERTION",
        "filesAnalyzed": False,
        "licenseConcluded": "NOASSERTION",
        # Older packages separate alternatives by a slash.
        "licenseDeclared": license.replace(" / ", " OR ").replace("/", " OR ") if license else "NOASSERTION",
        "copyrightText": "NOASSERTION",
    }
    if checksum:
        package["checksums"] = [{"algorithm": "SHA256", "checksumValue": checksum}]
    if purl:
        package["externalRefs"] = [
            {"referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl", "referenceLocator": purl}
        ]
    return package


def relation(source, kind, target):
    return {"spdxElementId": source, "relationshipType": kind, "relatedSpdxElement": target}


def main():
    metadata = json.loads(
        output("cargo", "metadata", "--locked", "--format-version", "1", "--filter-platform", TARGET)
    )
    root, edges = linked(metadata)
    sums = checksums()
    packages = {}
    for package in metadata["packages"]:
        if package["id"] in edges:
            name, version = package["name"], package["version"]
            purl = f"pkg:cargo/{name}@{version}" if package["source"] else None
            packages[package["id"]] = described(name, version, package["license"], purl, sums[name, version])
    hwloc = described("hwloc", output("pkg-config", "--modversion", "hwloc").strip(), "BSD-3-Clause")
    relations = [relation("SPDXRef-DOCUMENT", "DESCRIBES", packages[root]["SPDXID"])]
    relations.append(relation(packages[root]["SPDXID"], "STATIC_LINK", hwloc["SPDXID"]))
    for source in sorted(edges):
        for target in edges[source]:
            relations.append(relation(packages[source]["SPDXID"], "DEPENDS_ON", packages[target]["SPDXID"]))
    listed = sorted([*packages.values(), hwloc], key=lambda package: package["SPDXID"])
    digest = hashlib.sha256(json.dumps([listed, relations], sort_keys=True).encode()).hexdigest()
    document = {
        "spdxVersion": "SPDX-2.3",
        "dataLicense": "CC0-1.0",
        "SPDXID": "SPDXRef-DOCUMENT",
        "name": f"tandem-{packages[root]['versionInfo']}",
        "documentNamespace": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_OID, digest)}",
        "creationInfo": {"created": created(), "creators": ["Tool: scripts/spdx.py"]},
        "packages": listed,
        "relationships": relations,
    }
    json.dump(document, sys.stdout, indent=1)
    sys.stdout.write("\n")


if __name__ == "__main__":
    main()
