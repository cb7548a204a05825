"""The chart rendered without a cluster: what is there, under which switch, in which shape (N1, N2, N3, N6)."""

import msgspec
import pytest
import yaml

from reconciler.runtime.settings import RunOptions
from tests.chart.charting import (
    CHART,
    CLUSTER_NAME,
    ENABLED,
    NAMESPACE,
    RELEASE,
    arguments,
    flags,
    helm,
    of_kind,
    pick,
    pod_specs,
    render,
)

EVERYTHING = {
    "certificates.mode": "CertManager",
    "journal.persistence.enabled": True,
    "rbac.classesReadableByAll": True,
    "monitoring.serviceMonitor.enabled": True,
    "monitoring.prometheusRule.enabled": True,
}


@pytest.mark.parametrize("values", [{}, EVERYTHING], ids=["defaults", "everything"])
def test_N2_nothing_renders_without_gpu_enabled(values):
    off = helm("template", RELEASE, str(CHART), *flags(values | {"gpu.enabled": False})).stdout
    assert [item for item in yaml.safe_load_all(off) if item] == []


@pytest.mark.parametrize("values", [{}, EVERYTHING], ids=["defaults", "everything"])
def test_N2_the_chart_passes_lint(values):
    done = helm("lint", "--strict", str(CHART), *flags(ENABLED | values))
    assert "0 chart(s) failed" in done.stdout


def test_N2_every_part_is_rendered():
    kinds = {item["kind"] for item in render(EVERYTHING)}
    assert kinds >= {
        "CustomResourceDefinition", "StatefulSet", "DaemonSet", "Service", "PodDisruptionBudget",
        "MutatingWebhookConfiguration", "ValidatingWebhookConfiguration", "ValidatingAdmissionPolicy",
        "ValidatingAdmissionPolicyBinding", "ClusterRole", "Role", "NetworkPolicy", "Certificate", "Issuer",
        "ServiceMonitor", "PrometheusRule", "ConfigMap", "Job",
    }  # fmt: skip


def test_N2_namespaced_objects_stay_in_the_release_namespace_and_cluster_names_carry_it():
    cluster_kinds = (
        "ClusterRole", "ClusterRoleBinding", "MutatingWebhookConfiguration",
        "ValidatingWebhookConfiguration", "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding",
    )  # fmt: skip
    for item in render(EVERYTHING):
        if item["kind"] in cluster_kinds:
            assert item["metadata"]["name"].startswith(CLUSTER_NAME)
        elif item["kind"] != "CustomResourceDefinition":
            assert item["metadata"]["namespace"] == NAMESPACE, item["metadata"]["name"]


def test_O4_crds_are_rendered_as_the_files_say_and_kept():
    for crd in of_kind(render(), "CustomResourceDefinition"):
        plain = yaml.safe_load((CHART / "files/crds" / f"{crd['spec']['names']['plural']}.yaml").read_text())
        assert crd["spec"] == plain["spec"]
        assert crd["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"


def test_N1_two_replicas_spread_over_nodes_behind_a_disruption_budget():
    manifests = render()
    controller = pick(manifests, "StatefulSet")["spec"]
    assert controller["replicas"] == 2
    (spread,) = controller["template"]["spec"]["topologySpreadConstraints"]
    assert spread["topologyKey"] == "kubernetes.io/hostname"
    labels = controller["template"]["metadata"]["labels"]
    for selector in (spread["labelSelector"], pick(manifests, "PodDisruptionBudget")["spec"]["selector"]):
        assert selector["matchLabels"].items() <= labels.items()
    assert pick(manifests, "Service")["spec"]["selector"].items() <= labels.items()


def test_N1_the_budget_and_the_service_never_count_agents_or_the_uninstall_job():
    manifests = render()
    selector = pick(manifests, "Service")["spec"]["selector"]
    for item in (*of_kind(manifests, "DaemonSet"), *of_kind(manifests, "Job")):
        assert not selector.items() <= item["spec"]["template"]["metadata"]["labels"].items()


@pytest.mark.parametrize("replicas", [1, 3])
def test_N1_a_single_replica_has_no_budget_that_blocks_a_drain(replicas):
    assert len(of_kind(render({"controller.replicas": replicas}), "PodDisruptionBudget")) == (replicas > 1)


def test_J5_every_pod_has_a_journal_of_its_own():
    without = pick(render(), "StatefulSet")["spec"]
    assert {"name": "journal", "emptyDir": {"sizeLimit": "1Gi"}} in without["template"]["spec"]["volumes"]
    assert "volumeClaimTemplates" not in without
    claimed = pick(render({"journal.persistence.enabled": True}), "StatefulSet")["spec"]
    (claim,) = claimed["volumeClaimTemplates"]
    assert claim["spec"]["accessModes"] == ["ReadWriteOncePod"]
    assert "journal" not in [volume["name"] for volume in claimed["template"]["spec"]["volumes"]]
    assert claimed["persistentVolumeClaimRetentionPolicy"]["whenDeleted"] == "Retain"


@pytest.mark.parametrize(
    "name", ["StatefulSet gpu-binder", "DaemonSet gpu-binder-node-agent", "Job gpu-binder-uninstall"]
)
def test_N2_restricted_pod_security(name):
    specs = pod_specs(render())
    assert len(specs) == 3
    spec = specs[name]
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert not {"hostNetwork", "hostPID", "hostIPC"} & set(spec)
    for volume in spec.get("volumes", []):
        assert {"emptyDir", "secret", "configMap", "projected", "persistentVolumeClaim"} & set(volume)
    for container in spec["containers"]:
        context = container["securityContext"]
        assert context["allowPrivilegeEscalation"] is False
        assert context["readOnlyRootFilesystem"] is True
        assert context["capabilities"] == {"drop": ["ALL"]}
        assert container["resources"]["requests"] and container["resources"]["limits"]["memory"]


def test_N2_the_controller_is_started_with_every_setting():
    command, given = arguments(
        render(
            {
                "settings.resourceNames": ["nvidia.com/B", "nvidia.com/A", "nvidia.com/A"],
                "settings.rawNamePolicy": "Forbidden",
                "settings.tenantDetail": "Full",
                "settings.managerUsers": ["u2", "u1"],
                "controller.lostGraceSeconds": 90,
            }
        )
    )
    assert command == "run"
    assert given["namespace"] == "$(POD_NAMESPACE)" and given["identity"] == "$(POD_NAME)"
    assert (given["listen-port"], given["metrics-port"]) == ("8443", "8080")
    assert given["resource-names"] == "nvidia.com/A,nvidia.com/B"
    assert given["raw-name-policy"] == "Forbidden"
    assert given["tenant-detail"] == "Full"
    assert given["manager-users"] == "u1,u2"
    assert given["lost-grace-seconds"] == "90"
    assert given["webhook-config-name"] == CLUSTER_NAME
    assert given["journal"].startswith("/var/lib/gpu-binder/")


@pytest.mark.parametrize("mode", ["SelfMade", "CertManager"])
def test_N2_every_flag_of_the_chart_is_one_of_the_command_and_is_accepted(mode):
    _, given = arguments(render({"certificates.mode": mode}))
    values = {name.replace("-", "_"): value for name, value in given.items()}
    known = {field.name: field.default for field in msgspec.structs.fields(RunOptions)}
    assert set(values) <= set(known)
    RunOptions(**{name: type_as(known[name], value) for name, value in values.items()}).check()


def type_as(default, value):
    return type(default)(value) if isinstance(default, int | float) else value


def test_N1_probes_and_drain():
    (container,) = pick(render(), "StatefulSet")["spec"]["template"]["spec"]["containers"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert ports == {"webhooks": 8443, "metrics": 8080}
    assert container["livenessProbe"]["httpGet"] == {"path": "/healthz", "port": "metrics"}
    assert container["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": "metrics"}
    grace = pick(render(), "StatefulSet")["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
    _, given = arguments(render())
    assert grace > container["lifecycle"]["preStop"]["sleep"]["seconds"] + int(given["bind-deadline-seconds"])


def test_N2_certificates_self_made_or_by_cert_manager():
    self_made, managed = render(), render({"certificates.mode": "CertManager"})
    secret = pick(self_made, "Secret")
    assert secret["metadata"]["name"] == f"{RELEASE}-webhook-cert"
    assert "data" not in secret and "stringData" not in secret, "an upgrade would overwrite the authority"
    assert not of_kind(managed, "Secret")
    serving = pick(managed, "Certificate", "-webhook")
    assert serving["spec"]["secretName"] == f"{RELEASE}-webhook-cert"
    assert f"{RELEASE}.{NAMESPACE}.svc" in serving["spec"]["dnsNames"]
    for kind in ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"):
        annotations = pick(managed, kind)["metadata"]["annotations"]
        assert annotations["cert-manager.io/inject-ca-from"] == f"{NAMESPACE}/{RELEASE}-webhook"
        assert "annotations" not in pick(self_made, kind)["metadata"]
    assert "webhook-config-name" not in arguments(managed)[1]
    given = render({"certificates.mode": "CertManager", "certificates.certManager.issuerRef": {"name": "x"}})
    assert not of_kind(given, "Issuer")


def test_N6_C47_the_uninstall_hook_unblocks_before_the_release_goes():
    manifests = render()
    job = pick(manifests, "Job")
    hooks = [item for item in manifests if item["metadata"]["name"].endswith("-uninstall")]
    assert {item["kind"] for item in hooks} == {
        "ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding", "Job",
    }  # fmt: skip
    for item in hooks:
        assert item["metadata"]["annotations"]["helm.sh/hook"] == "pre-delete"
        before = int(item["metadata"]["annotations"]["helm.sh/hook-weight"])
        assert item is job or before < int(job["metadata"]["annotations"]["helm.sh/hook-weight"])
    (container,) = job["spec"]["template"]["spec"]["containers"]
    assert container["args"] == [
        "uninstall",
        f"--namespace={NAMESPACE}",
        f"--webhook-config-name={CLUSTER_NAME}",
        f"--workload={RELEASE}",
    ]


def test_K4_the_settings_exist_before_the_policy_needs_them_and_belong_to_the_controller():
    manifests = render({"settings.resourceNames": ["b.io/2", "a.io/1"]})
    settings = pick(manifests, "ConfigMap", "gpu-settings")
    assert settings["metadata"]["name"] == "gpu-settings"
    assert settings["metadata"]["annotations"]["helm.sh/hook"] == "pre-install,pre-upgrade"
    assert settings["data"]["resourceNames"] == "a.io/1,b.io/2"
    assert set(settings["data"]) == {"resourceNames", "rawNamePolicy", "managerUsers"}


def test_N2_the_network_policy_covers_every_pod_and_opens_two_ports_and_the_api_server():
    manifests = render()
    policy = pick(manifests, "NetworkPolicy")["spec"]
    for item in manifests:
        if item["kind"] in ("StatefulSet", "DaemonSet", "Job"):
            labels = item["spec"]["template"]["metadata"]["labels"]
            assert policy["podSelector"]["matchLabels"].items() <= labels.items()
    assert sorted(policy["policyTypes"]) == ["Egress", "Ingress"]
    assert [rule["ports"][0]["port"] for rule in policy["ingress"]] == ["webhooks", "metrics"]
    (egress,) = policy["egress"]
    assert [port["port"] for port in egress["ports"]] == [443, 6443]


# Who may call the webhooks (W7)


def test_W7_credentials_are_mounted_and_named_in_the_flags():
    values = {
        "webhooks.clientAuth": {
            "mode": "Require",
            "caConfigMap": {"name": "callers-ca", "key": "authorities.pem"},
            "allowedNames": ["kube-apiserver", "another"],
            "tokenSecret": {"name": "callers", "key": "tokens"},
        }
    }
    rendered = render(values)
    _, given = arguments(rendered)
    assert given["webhook-auth"] == "Require"
    assert given["webhook-client-ca"] == "/run/gpu-binder/clients/ca/authorities.pem"
    assert given["webhook-client-names"] == "another,kube-apiserver"
    assert given["webhook-token-file"] == "/run/gpu-binder/clients/token/tokens"
    spec = pick(rendered, "StatefulSet")["spec"]["template"]["spec"]
    mounted = {mount["name"]: mount["mountPath"] for mount in spec["containers"][0]["volumeMounts"]}
    assert mounted["client-ca"] == "/run/gpu-binder/clients/ca"
    assert mounted["client-token"] == "/run/gpu-binder/clients/token"
    sources = {volume["name"]: volume for volume in spec["volumes"]}
    assert sources["client-ca"]["configMap"]["name"] == "callers-ca"
    assert sources["client-token"]["secret"]["secretName"] == "callers"
    plain = arguments(render())[1]
    assert plain["webhook-auth"] == "Ignore" and not {"webhook-client-ca", "webhook-token-file"} & set(plain)


def ingress(rendered, port):
    (policy,) = [item for item in rendered if item["kind"] == "NetworkPolicy"]
    return [rule for rule in policy["spec"]["ingress"] if rule["ports"][0]["port"] == port]


def test_W7_the_network_policy_admits_the_peers_that_are_named():
    assert ingress(render(), "webhooks") == [{"ports": [{"port": "webhooks", "protocol": "TCP"}]}]
    peers = [{"ipBlock": {"cidr": "10.0.0.0/28"}}]
    (rule,) = ingress(render({"networkPolicy.webhooksFrom": peers}), "webhooks")
    assert rule["from"] == peers


def test_W7_where_cilium_runs_api_servers_and_nodes_alone_are_admitted():
    rendered = render({"networkPolicy.cilium": True})
    assert ingress(rendered, "webhooks") == [], "two policies that allow would add up"
    (policy,) = [item for item in rendered if item["kind"] == "CiliumNetworkPolicy"]
    (rule,) = policy["spec"]["ingress"]
    assert rule["fromEntities"] == ["kube-apiserver", "host", "remote-node"]
    assert [item for item in render({"networkPolicy.cilium": False}) if item["kind"] == "CiliumNetworkPolicy"] == []
