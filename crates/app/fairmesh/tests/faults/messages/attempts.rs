//! A client that asks for the number of attempts receives it with the response.

use tokio::io::AsyncWriteExt as _;

use crate::harness::{Proxy, RawServer, World, beside_others, read_head, say};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn response_has_attempt_count_if_requested() {
    let _machine = beside_others().await;
    let world = World::start("").await;
    let one = RawServer::start(&world, "shop/one", "one").await;
    let proxy = Proxy::with(&world, "--cores 1").await;
    let request = |method: &str, asks: &str| {
        format!("{method} / HTTP/1.1\r\nhost: one.shop\r\ncontent-length: 0\r\n{asks}\r\n")
    };
    const ASKS: &str = "x-fairmesh-explain: true\r\n";
    for (method, asks, statuses, attempts) in [
        ("GET", ASKS, &["503", "503", "200"][..], Some(3)),
        ("PUT", ASKS, &["503", "200"], Some(2)),
        ("DELETE", ASKS, &["503", "503", "503"], Some(3)),
        ("GET", ASKS, &["500"], Some(1)),
        ("POST", ASKS, &["503"], Some(1)),
        ("GET", "", &["503", "200"], None),
    ] {
        let mut program = say(&proxy.for_one, request(method, asks)).await;
        for status in statuses {
            let mut served = one.accept().await;
            let request = read_head(&mut served).await;
            assert!(!request.contains("x-fairmesh-explain"), "{request}");
            let response =
                format!("HTTP/1.1 {status} Status\r\nconnection: close\r\ncontent-length: 0\r\n\r\n");
            served.write_all(response.as_bytes()).await.unwrap();
        }
        let answer = read_head(&mut program).await;
        let last = statuses.last().unwrap();
        assert!(answer.starts_with(&format!("http/1.1 {last} ")), "{method} {statuses:?}: {answer}");
        let told = answer.lines().find_map(|line| line.strip_prefix("x-fairmesh-attempts: "));
        assert_eq!(told, attempts.map(|count: u32| count.to_string()).as_deref(), "{method}: {answer}");
    }
    // No server responds to this request.
    let nobody = format!("GET / HTTP/1.1\r\nhost: none.shop\r\n{ASKS}\r\n");
    let answer = read_head(&mut say(&proxy.by_host, nobody).await).await;
    assert!(answer.contains("\r\nx-fairmesh-attempts: 0\r\n"), "{answer}");
}
