//! Envoy as the sidecar of a caller and of a server, with mutual TLS between them.

use std::{net::SocketAddr, path::Path};

use crate::proxy::contenders::write;

use super::certificate_authority::{BUNDLE, IDENTITY};

/// TLS configuration of a sidecar's connections to other sidecars.
struct Tls<'a> {
    /// `Downstream` or `Upstream`.
    side: &'static str,
    /// Additional lines.
    more: &'a str,
    /// Lines that verify the peer.
    peer: &'a str,
}

/// Arguments of the sidecar that accepts mutual TLS, for a plaintext program.
pub(super) fn ingress(
    (dir, identity): (&Path, &Path),
    listen: SocketAddr,
    to: SocketAddr,
) -> Result<Vec<String>, String> {
    let tls = Tls { side: "Downstream", more: "require_client_certificate: true, ", peer: "" };
    write_config((dir, "ingress.yaml"), listen, to, [&tls.lines(identity), ""])
}

/// Arguments of the sidecar that calls a server with this id by mutual TLS, for plaintext callers.
pub(super) fn egress(
    (dir, identity): (&Path, &Path),
    listen: SocketAddr,
    (to, id): (SocketAddr, &str),
) -> Result<Vec<String>, String> {
    let peer = format!(", match_typed_subject_alt_names: [{{san_type: URI, matcher: {{exact: '{id}'}}}}]");
    let tls = Tls { side: "Upstream", more: "", peer: &peer };
    write_config((dir, "egress.yaml"), listen, to, ["", &tls.lines(identity)])
}

impl Tls<'_> {
    fn lines(&self, identity: &Path) -> String {
        let Self { side, more, peer } = self;
        let [own, roots] = [IDENTITY, BUNDLE].map(|name| identity.join(name).display().to_string());
        format!(
            "
    transport_socket:
      name: envoy.transport_sockets.tls
      typed_config: {{'@type': type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.{side}TlsContext, {more}common_tls_context: \
             {{tls_params: {{tls_minimum_protocol_version: TLSv1_3, tls_maximum_protocol_version: TLSv1_3, ecdh_curves: [X25519]}}, \
             tls_certificates: [{{certificate_chain: {{filename: '{own}'}}, private_key: {{filename: '{own}'}}}}], \
             validation_context: {{trusted_ca: {{filename: '{roots}'}}{peer}}}}}}}"
        )
    }
}

fn write_config(
    (dir, name): (&Path, &str),
    listen: SocketAddr,
    to: SocketAddr,
    [downstream, upstream]: [&str; 2],
) -> Result<Vec<String>, String> {
    let (listen, to) = (listen.port(), to.port());
    let config = format!(
        "static_resources:
  listeners:
  - address: {{socket_address: {{address: 127.0.0.1, port_value: {listen}}}}}
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          '@type': type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: bench
          route_config:
            virtual_hosts:
            - {{name: bench, domains: ['*'], routes: [{{match: {{prefix: /}}, route: {{cluster: bench, timeout: 15s}}}}]}}
          http_filters:
          - name: envoy.filters.http.router
            typed_config: {{'@type': type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}}{}
  clusters:
  - name: bench
    type: STATIC
    connect_timeout: 2s
    lb_policy: LEAST_REQUEST{upstream}
    load_assignment: {{cluster_name: bench, endpoints: [{{lb_endpoints: [{{endpoint: {{address: {{socket_address: {{address: 127.0.0.1, port_value: {to}}}}}}}}}]}}]}}
",
        downstream.replace("\n    ", "\n      ")
    );
    let config = write(dir, name, &config)?;
    let args = ["-c", &config, "--concurrency", "1", "--use-dynamic-base-id", "--log-level", "error"];
    Ok(args.map(str::to_owned).to_vec())
}
