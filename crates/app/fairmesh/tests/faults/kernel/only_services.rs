//! Programs that may reach only services, by the option of their cgroup or of the proxy. The agent must not be in such
//! a cgroup.

use std::process::Stdio;

use tokio::{io::AsyncWriteExt as _, net::TcpListener, process::Command};

use fairmesh_model::Protocol;

use super::Attached;
use crate::harness::{Proxy, Spec, World, beside_others, free_port, read_head, until};

/// Address of a server that is no service.
const ELSEWHERE: &str = "127.96.9.1:0";

/// A server whose response shows that it was reached.
async fn serve(listener: TcpListener) {
    while let Ok((mut stream, _)) = listener.accept().await {
        read_head(&mut stream).await;
        let response = b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 6\r\n\r\ndirect";
        stream.write_all(response).await.unwrap();
    }
}

/// Asserts that a change of another option keeps the restriction.
async fn stays_guarded(attached: &Attached, attach: &[&str], ports: &str) {
    let said = attached.kernel(&[attach, &["--max-in-flight", "9"]].concat()).await.ok();
    let options = format!("services only, ports {} of 127.96.0.0/16", ports.replace(',', ", "));
    assert!(said.contains(&options) && said.contains("so connections are refused"), "{said}");
}

/// Asserts that `--only-services=false` removes the restriction, and that the hint names the folder of the maps.
async fn opens(attached: &Attached, attach: &[&str]) {
    let said = attached.kernel(&[attach, &["--only-services=false"]].concat()).await.ok();
    let hint = format!("--listen kernel:127.0.0.1:7416+bpffs={}'", attached.pins().display());
    assert!(said.contains(&hint), "{said}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn program_in_only_services_cgroup_reaches_nothing_without_proxy() {
    let _machine = beside_others().await;
    let Some(attached) = Attached::new("only").await else { return };
    let world = World::start("").await;
    let _server = Spec::new("shop/hello", "hello-1", Protocol::Http1).here(&world).await;
    let elsewhere = TcpListener::bind(ELSEWHERE).await.unwrap();
    let address = elsewhere.local_addr().unwrap();
    let serving = tokio::spawn(serve(elsewhere));
    let url = format!("http://{address}/");
    let ports = format!("80,{}", address.port());
    let attach = ["attach", "--cgroup", &attached.cgroup, "--to", "127.96.0.0/16", "--port", &ports];
    let reaches_service =
        async || attached.curl(&["http://hello.shop/"]).await.ok().contains("x-instance: hello-1");
    let is_refused = async || {
        let before = attached.counter("refused").await;
        let said = attached.curl(&[&url]).await;
        said.code == Some(7) && attached.counter("refused").await == before + 1
    };

    // The cgroup's option also applies before a proxy exists.
    let said = attached.kernel(&[&attach[..], &["--only-services"]].concat()).await.ok();
    assert!(said.contains("so connections are refused"), "{said}");
    assert!(is_refused().await);
    let mut proxy = attached.proxy(&world).await;
    until("connections go to the proxy", async || !attached.status().await["proxy"].is_null()).await;
    assert!(reaches_service().await);
    let said = attached.curl(&[&url]).await.ok();
    assert!(said.starts_with("HTTP/1.1 404 "), "the proxy serves services alone too: {said}");
    proxy.process.kill().await;
    assert!(is_refused().await);
    let status = attached.kernel(&["status"]).await.ok();
    assert!(status.contains(&format!("{}, services only", attached.cgroup)), "{status}");

    stays_guarded(&attached, &attach, &ports).await;
    assert!(is_refused().await);

    // The proxy's option.
    opens(&attached, &attach).await;
    assert!(attached.curl(&[&url]).await.ok().ends_with("direct"));
    let listen =
        format!("kernel:127.0.0.1:{}+only-services+bpffs={}", free_port(), attached.pins().display());
    let mut proxy = Proxy::with(&world, &format!("--listen {listen}")).await;
    until("connections go to the proxy", async || !attached.status().await["proxy"].is_null()).await;
    assert!(reaches_service().await);
    proxy.process.kill().await;
    assert!(is_refused().await);
    let status = attached.kernel(&["status"]).await.ok();
    assert!(status.contains("none listens; connections are refused"), "{status}");
    proxy.process.restart();
    until("services are reached again", async || {
        attached.curl(&["http://hello.shop/"]).await.code == Some(0)
    })
    .await;
    attached.kernel(&["detach"]).await.ok();
    assert!(attached.curl(&[&url]).await.ok().ends_with("direct"), "without a trace");
    serving.abort();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn attach_to_agents_cgroup_is_refused() {
    let _machine = beside_others().await;
    let Some(attached) = Attached::new("agent").await else { return };
    let world = World::start("").await;
    let socket = format!("unix:{}", world.path("own.sock").display());
    let control = format!("unix:{}", world.path("control.sock").display());
    let state = world.path("own-state").display().to_string();
    let own = format!("{}-agent", attached.cgroup);
    let agent = ["agent", "--name", "own", "--region", "eu", "--admin", "none", "--control", &control];
    let mut agent = Command::new(env!("CARGO_BIN_EXE_fairmesh"))
        .args(["kernel", "run", "--cgroup", &own, "--", env!("CARGO_BIN_EXE_fairmesh")])
        .args(agent)
        .args(["--listen", &socket, "--state-dir", &state])
        .env_clear()
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    until("the agent listens", async || world.path("own.sock").exists()).await;
    for to in [["--cgroup", &own, "--port", "80"], ["--cgroup", &attached.cgroup, "--servers", &own]] {
        let mut command = Command::new("env");
        command
            .args([&format!("FAIRMESH_AGENT={socket}"), env!("CARGO_BIN_EXE_fairmesh"), "kernel", "attach"])
            .args(to)
            .args(["--bpffs", &attached.pins().display().to_string()]);
        let said = crate::harness::run(command, "", super::PATIENCE).await.fails();
        assert!(said.contains("contains the agent"), "{said}");
        assert!(!attached.pins().exists(), "nothing was made");
    }
    agent.kill().await.unwrap();
}
