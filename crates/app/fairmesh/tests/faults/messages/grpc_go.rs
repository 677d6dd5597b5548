//! Streams without messages, between clients and servers of grpc-go.

use std::{process::Stdio, time::Duration};

use fairmesh_model::Protocol;
use fairmesh_server::MeshServer;
use futures_util::stream;
use tokio::{
    io::{AsyncBufReadExt as _, BufReader},
    process::{Child, Command},
    time::timeout,
};
use tonic_prost::ProstCodec;

use crate::harness::{
    PATIENCE, Process, Program, Proxy, World, beside_others, free_port, run, skipped, tool,
};

const METHOD: &str = "/grpc.testing.TestService/StreamingInputCall";

/// Starts a grpc-go server, which ends on drop; returns its address.
async fn serve() -> Option<(Child, String)> {
    let mut command = Command::new(tool("grpc-go")?);
    let server =
        command.arg("serve").env_clear().stdin(Stdio::null()).stdout(Stdio::piped()).kill_on_drop(true);
    let mut server = server.spawn().unwrap();
    let mut lines = BufReader::new(server.stdout.take().unwrap()).lines();
    let address = timeout(PATIENCE, lines.next_line()).await.expect("it does not listen").unwrap().unwrap();
    Some((server, address))
}

/// Makes a grpc-go client stream `messages` messages in each of its calls.
async fn streams(to: &str, messages: usize) {
    let mut command = Command::new(tool("grpc-go").unwrap());
    command.args(["call", to, "one.shop", &messages.to_string()]);
    let run = run(command, "", Duration::from_secs(60)).await;
    assert_eq!(run.ok(), "20 calls\n", "{messages} messages");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn empty_grpc_stream_is_half_closed_end_to_end() {
    let _machine = beside_others().await;
    let Some((_go, address)) = serve().await else {
        return skipped(
            "gRPC cannot be called by grpc-go",
            "`scripts/setup.sh grpc-go` builds it, where Go is installed",
        );
    };
    let world = World::start("").await;
    let server = MeshServer::builder("shop/one").instance("go").protocol(Protocol::Grpc);
    let server = server.address(address.parse().unwrap()).agent(world.agent_address()).start().await.unwrap();
    world.serves("shop/one", "go").await;
    let proxy = Proxy::start(&world).await;
    for messages in [0, 3] {
        streams(&proxy.by_host, messages).await;
    }

    let mut client = tonic::client::Grpc::new(world.mesh().await.service("shop/one").unwrap());
    client.ready().await.unwrap();
    for _ in 0..20 {
        // No field of either message is used.
        let codec = ProstCodec::<(), ()>::default();
        let streamed =
            client.client_streaming(tonic::Request::new(stream::empty()), METHOD.parse().unwrap(), codec);
        timeout(PATIENCE, streamed).await.expect("it hangs").unwrap();
    }
    server.shutdown().await;

    // Also with a proxy in front of the server.
    let [inbound, listen] = [(); 2].map(|()| format!("127.0.0.1:{}", free_port()));
    let args = format!(
        "proxy --agent {} --listen {listen} --admin none --inbound shop/one@{inbound}={address} --inbound-instance behind \
         --inbound-protocol grpc",
        world.agent_address(),
    );
    let _behind = Process::start(Program::fairmesh(world.path("behind.log"), &args));
    world.serves("shop/one", "behind").await;
    streams(&inbound, 0).await;
}
