"""The node agent as the chart starts it (N5)."""

from reconciler.node_agent.agent import read_map
from tests.chart.charting import arguments, of_kind, pick, render


def test_N5_the_agent_reports_its_own_node_only():
    manifests = render()
    command, given = arguments(manifests, "DaemonSet")
    assert command == "node-agent" and given["node-name"] == "$(NODE_NAME)"
    policy = pick(manifests, "ValidatingAdmissionPolicy", "-node-agent")
    assert "authentication.kubernetes.io/node-name" in str(policy["spec"]["variables"])
    assert not of_kind(render({"nodeAgent.enabled": False}), "DaemonSet")


def test_N5_a_map_of_names_is_mounted_and_read_by_the_agent(tmp_path):
    names = {
        "pciHostDevices": [{"pciVendorSelector": "10de:2236", "resourceName": "nvidia.com/GA102GL_A10"}],
        "modes": {"0000:3b:00.0": "VGPU"},
    }
    manifests = render({"nodeAgent.map": names})
    _, given = arguments(manifests, "DaemonSet")
    spec = pick(manifests, "DaemonSet")["spec"]["template"]["spec"]
    (mount,), (volume,) = spec["containers"][0]["volumeMounts"], spec["volumes"]
    assert given["map-file"] == f"{mount['mountPath']}/map.yaml"
    held = pick(manifests, "ConfigMap", volume["configMap"]["name"])
    path = tmp_path / "map.yaml"
    path.write_text(held["data"]["map.yaml"])
    assert read_map(path).pci == {"10DE:2236": "nvidia.com/GA102GL_A10"}
    assert "map-file" not in arguments(render(), "DaemonSet")[1]
