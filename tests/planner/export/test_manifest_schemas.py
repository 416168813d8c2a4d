"""Manifests have the fields of the API that reads them: what is refused, and what the schemas showed wrong."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from simserve.errors import InvariantError, ScenarioError
from simserve.planner.export.export import export
from simserve.planner.export.manifest_schemas import checked_against, load_schemas
from simserve.scenario.load import load
from tests.scenario.builders import make_scenario


def changed(scenario: str, target: str, file: str, path: str, value: Any) -> dict[str, str]:
    """Return one file of an export with a value put at a path; None: with the field left out."""
    documents = list(yaml.safe_load_all(export(load(scenario), target).files[file]))
    *way, last = [int(each) if each.isdigit() else each for each in path.split("/")]
    place: Any = documents
    for each in way:
        place = place[each]
    if value is None:
        del place[last]
    else:
        place[last] = value
    return {file: yaml.safe_dump_all(documents)}


CONTAINER = "0/spec/template/spec/containers/0"


@pytest.mark.parametrize(
    ("scenario", "target", "file", "path", "value", "fault"),
    [
        ("cold-start", "k8s", "cold-start.k8s.yaml", f"{CONTAINER}/resource", {}, "is not a field"),
        ("cold-start", "k8s", "cold-start.k8s.yaml", f"{CONTAINER}/name", None, r"containers\.0 lacks name"),
        ("cold-start", "k8s", "cold-start.k8s.yaml", "0/spec/replicas", "2", "must be at least 0, not '2'"),
        ("cold-start", "k8s", "cold-start.k8s.yaml", "0/spec/replicas", True, "must be at least 0, not True"),
        ("cold-start", "k8s", "cold-start.k8s.yaml", "1/metadata/name", "8x-h100", "must be dns-label"),
        ("cold-start", "k8s", "cold-start.k8s.yaml", "3/spec/metrics/0/type", "Pod", "must be one of Pods"),
        ("cold-start", "k8s", "cold-start.k8s.yaml", "3/kind", "Autoscaler", "has an object without a schema"),
        ("cold-start", "keda", "cold-start.keda.yaml", "3/spec/triggers/0/metadata/threshold", 10, "must be string"),
        (
            "disaggregation",
            "dynamo",
            "disaggregation.dynamo.yaml",
            "0/spec/components/1/podTemplate/spec/containers/0/name",
            "worker",
            "must be one of main, not 'worker'",
        ),
        (
            "disaggregation",
            "llm-d",
            "disaggregation.inferencepool.yaml",
            "0/inferenceExtension/pluginsCustomConfig/simulated.yaml",
            "{apiVersion: a, kind: b, plugins: [{name: c}], schedulingProfiles: []}",
            r"plugins\.0 lacks type",
        ),
        ("disaggregation", "kserve", "disaggregation.kserve.yaml", "0/spec/prefill/router", {}, "is not a field"),
        ("chatbot", "compose", "compose.yaml", "0/services/chatbot-0/volumes", "a:b", "must be a list"),
    ],
)
def test_a_field_that_the_api_does_not_take_is_never_printed(
    scenario: str, target: str, file: str, path: str, value: Any, fault: str
) -> None:
    """Unknown, missing, of another type, or none of the choices: named with its path and the schema."""
    files = changed(scenario, target, file, path, value)

    with pytest.raises(InvariantError, match=f"{fault}.*"):
        checked_against(files)


def test_an_export_says_what_it_was_checked_against() -> None:
    """A note names each API, and nothing is left unvalidated."""
    keda = export(load("cold-start"), "keda").notes
    llm_d = export(load("disaggregation"), "llm-d").notes

    assert "fields and types checked against Kubernetes 1.33 and KEDA keda.sh/v1alpha1" in keda
    assert any("llm-d-modelservice at" in note and "inferencepool chart at" in note for note in llm_d)
    assert not any("not validated" in note for note in (*keda, *llm_d))


def test_every_listed_type_belongs_to_a_manifest() -> None:
    """No type of the table is unknown or unused, and each schema says where it is from."""
    schemas = load_schemas()
    named = {kind for schema in schemas.schemas for kind in (*schema.kinds.values(), *schema.files.values())}
    named |= {kind.rpartition(" of ")[2] for fields in schemas.types.values() for kind in fields.values()}

    assert set(schemas.types) <= named
    assert {kind for kind in named if kind[:1].isupper() and "|" not in kind} <= set(schemas.types)
    assert all(schema.source for schema in schemas.schemas)


def test_a_name_that_begins_with_a_digit_is_one_of_a_service() -> None:
    """Kubernetes wants a letter first."""
    scenario = load("chatbot", ["name=8x-H100"])

    result = export(scenario, "k8s")

    (service,) = (each for each in yaml.safe_load_all(next(iter(result.files.values()))) if each["kind"] == "Service")
    assert service["metadata"]["name"] == "simserve-8x-h100"


def test_llm_d_reads_its_token_under_another_key_and_keeps_to_one_node() -> None:
    """Its chart takes `HF_TOKEN` from the secret, and starts no ranks on other nodes."""
    notes = export(load("disaggregation"), "llm-d").notes
    wide = make_scenario(
        ["deployment.engine.max_model_len=4096"],
        model="llama-3.1-405b",
        deployment={"hardware": "h100-sxm-80gb", "tensor_parallel_size": 16},
    )

    assert any("--from-literal=HF_TOKEN=" in note for note in notes)
    assert not any("--from-literal=token=" in note for note in notes)
    with pytest.raises(ScenarioError, match="cannot be exported to llm-d: a pod lies on one node"):
        export(wide, "llm-d")


def test_the_production_stack_is_installed_past_the_schema_that_refuses_its_triggers() -> None:
    """Only where there is an autoscaler."""
    scaled = export(load("cold-start", ["deployment.routing=round_robin"]), "production-stack")
    fixed = export(load("chatbot"), "production-stack")

    assert "--skip-schema-validation" in scaled.command
    assert any("--skip-schema-validation" in note for note in scaled.notes)
    assert "--skip-schema-validation" not in fixed.command
