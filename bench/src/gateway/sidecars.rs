//! An Envoy for each pod, with mutual TLS between them.

use std::{net::SocketAddr, path::Path};

use serde_json::{Value, json};

use super::{BenchMesh, CALLER, PODS, SERVICES, Side, servers_of};
use crate::{
    mesh_processes::port,
    proxy::{
        contenders::{on_path, write},
        process::Process,
    },
    tls::certificate_authority::{BUNDLE, DOMAIN, IDENTITY},
};

const EXTENSIONS: &str = "type.googleapis.com/envoy.extensions";

/// Starts the sidecar of each pod.
pub(super) async fn start(mesh: &BenchMesh<'_>) -> Result<Side, String> {
    let envoy = on_path("envoy").ok_or("envoy is not on the path; run scripts/setup.sh peers")?;
    let run = |name: String, config: Value| {
        let config = write(mesh.dir, &format!("{name}.json"), &config.to_string())?;
        let args = ["-c", &config, "--concurrency", "1", "--use-dynamic-base-id", "--log-level", "error"];
        Process::pinned(mesh.dir, &name, &envoy, &args)
    };
    let (mut on_nodes, mut clusters, mut calls) = (Vec::new(), Vec::new(), Vec::new());
    for (service, servers) in servers_of(&mesh.servers) {
        let identity = identity(mesh, service)?;
        let mut sidecars = Vec::new();
        for server in servers {
            let at = port()?;
            sidecars.push(at);
            let tls = tls("Downstream", &identity, None);
            let cluster = cluster("program", &[*server], None);
            let name = format!("ingress-{}", server.ip());
            on_nodes.push(run(name, config(&[(at, "program", Some(tls))], &[cluster]))?);
        }
        let caller = self::identity(mesh, CALLER)?;
        let id = format!("spiffe://{DOMAIN}/{service}");
        clusters.push(cluster(service, &sidecars, Some(tls("Upstream", &caller, Some(&id)))));
    }
    for pod in 1..=PODS {
        let mut listeners = Vec::new();
        for service in SERVICES {
            let at = port()?;
            calls.push(format!("={at}"));
            listeners.push((at, service, None));
        }
        on_nodes.push(run(format!("egress-{pod}"), config(&listeners, &clusters))?);
    }
    Ok(Side { on_nodes, provider: Vec::new(), calls })
}

/// The folder with the certificate of a service.
fn identity(mesh: &BenchMesh<'_>, service: &str) -> Result<std::path::PathBuf, String> {
    let folder = mesh.dir.join("identities").join(service);
    if !folder.exists() {
        std::fs::create_dir_all(&folder).map_err(|e| format!("cannot create {}: {e}", folder.display()))?;
        mesh.authority.issue(service, &folder)?;
    }
    Ok(folder)
}

fn tls(side: &str, identity: &Path, peer: Option<&str>) -> Value {
    let [own, roots] = [IDENTITY, BUNDLE].map(|name| json!({"filename": identity.join(name)}));
    let mut validation = json!({"trusted_ca": roots});
    let mut context = json!({
        "@type": format!("{EXTENSIONS}.transport_sockets.tls.v3.{side}TlsContext"),
        "common_tls_context": {
            "tls_params": {
                "tls_minimum_protocol_version": "TLSv1_3", "tls_maximum_protocol_version": "TLSv1_3",
                "ecdh_curves": ["X25519"],
            },
            "tls_certificates": [{"certificate_chain": own, "private_key": own}],
        },
    });
    match peer {
        Some(id) => {
            validation["match_typed_subject_alt_names"] =
                json!([{"san_type": "URI", "matcher": {"exact": id}}]);
        }
        None => context["require_client_certificate"] = true.into(),
    }
    context["common_tls_context"]["validation_context"] = validation;
    json!({"name": "envoy.transport_sockets.tls", "typed_config": context})
}

fn address(at: &SocketAddr) -> Value {
    json!({"socket_address": {"address": at.ip().to_string(), "port_value": at.port()}})
}

fn cluster(name: &str, endpoints: &[SocketAddr], tls: Option<Value>) -> Value {
    let endpoints: Vec<_> =
        endpoints.iter().map(|at| json!({"endpoint": {"address": address(at)}})).collect();
    let mut cluster = json!({
        "name": name, "type": "STATIC", "connect_timeout": "2s", "lb_policy": "LEAST_REQUEST",
        "load_assignment": {"cluster_name": name, "endpoints": [{"lb_endpoints": endpoints}]},
    });
    if let Some(tls) = tls {
        cluster["transport_socket"] = tls;
    }
    cluster
}

/// A configuration with a listener for each cluster that is named.
fn config(listeners: &[(SocketAddr, &str, Option<Value>)], clusters: &[Value]) -> Value {
    let listeners: Vec<_> = listeners
        .iter()
        .map(|(at, cluster, tls)| {
            let manager = json!({
                "@type": format!("{EXTENSIONS}.filters.network.http_connection_manager.v3.HttpConnectionManager"),
                "stat_prefix": "bench",
                "route_config": {"virtual_hosts": [{
                    "name": "bench", "domains": ["*"],
                    "routes": [{"match": {"prefix": "/"}, "route": {"cluster": cluster, "timeout": "15s"}}],
                }]},
                "http_filters": [{
                    "name": "envoy.filters.http.router",
                    "typed_config": {"@type": format!("{EXTENSIONS}.filters.http.router.v3.Router")},
                }],
            });
            let manager = json!({"name": "envoy.filters.network.http_connection_manager", "typed_config": manager});
            let mut chain = json!({"filters": [manager]});
            if let Some(tls) = tls {
                chain["transport_socket"] = tls.clone();
            }
            json!({"address": address(at), "filter_chains": [chain]})
        })
        .collect();
    json!({"static_resources": {"listeners": listeners, "clusters": clusters}})
}
