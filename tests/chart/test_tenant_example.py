"""What the tenant-facing chart writes, the webhooks' one parser reads back (K1, V2)."""

import pytest

from reconciler.core.model.references import DeviceReference, TemplateReference, parse_references
from reconciler.core.model.vocabulary import DEVICES_ANNOTATION, DEVICES_LABEL, TRUE
from tests.chart.charting import EXAMPLE, helm, render_example

CASES = [
    pytest.param([{"device": "training"}], [DeviceReference("training")], id="held"),
    pytest.param([{"className": "a10"}], [TemplateReference("a10", 1)], id="template of one"),
    pytest.param([{"className": "a10", "count": 8}], [TemplateReference("a10", 8)], id="template of eight"),
    pytest.param(
        [{"device": "a.b-c"}, {"className": "l40s.q", "count": 1024}, {"device": "z"}],
        [DeviceReference("a.b-c"), TemplateReference("l40s.q", 1024), DeviceReference("z")],
        id="mixed, in order",
    ),
]


def template(gpus):
    return render_example({"gpus": gpus})["spec"]["template"]


@pytest.mark.parametrize(("gpus", "references"), CASES)
def test_K1_every_rendered_reference_is_read_back(gpus, references):
    metadata = template(gpus)["metadata"]
    assert metadata["labels"][DEVICES_LABEL] == TRUE
    assert list(parse_references(metadata["annotations"][DEVICES_ANNOTATION])) == references


@pytest.mark.parametrize("gpus", [[], [{"name": "nvidia.com/GA102GL_A10"}]], ids=["none", "raw only"])
def test_K1_V2_without_references_there_is_neither_label_nor_annotation(gpus):
    metadata = template(gpus)["metadata"]
    assert DEVICES_LABEL not in metadata["labels"]
    assert DEVICES_ANNOTATION not in metadata["annotations"]


def test_K1_raw_names_stay_in_the_device_list_and_references_never_do():
    spec = template([{"device": "training"}, {"name": "nvidia.com/GA102GL_A10"}])["spec"]
    assert spec["domain"]["devices"]["gpus"] == [{"name": "gpu2", "deviceName": "nvidia.com/GA102GL_A10"}]
    assert "resources" not in spec["domain"]


def test_K1_the_example_in_the_values_file_is_read_back(tmp_path):
    lines = (EXAMPLE / "values.yaml").read_text().split("## Example:\n")[1].splitlines()
    taken = [line.removeprefix("## ") for line in lines[: lines.index("")]]
    values = tmp_path / "values.yaml"
    values.write_text("\n".join(taken))
    text = helm("template", "vm", str(EXAMPLE), "--values", str(values)).stdout
    assert DEVICES_LABEL in text and "training" in text


@pytest.mark.parametrize("gpu", [{}, {"device": "a", "className": "b"}, {"className": "a", "count": 0}])
def test_K1_a_gpu_that_is_no_reference_is_refused_at_render(gpu):
    with pytest.raises(AssertionError, match="gpus"):
        render_example({"gpus": [gpu]})
