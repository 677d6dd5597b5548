//! Information that clients outside the mesh can obtain.

use fairmesh_model::Protocol;

use crate::harness::{Proxy, Spec, World, beside_others, free_port, read_head, say};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_outside_mesh_see_no_load_reports_and_no_instance_names() {
    let _machine = beside_others().await;
    let world = World::start("").await;
    let _one = Spec::new("shop/one", "secret-name", Protocol::Http1).here(&world).await;
    // Messages take the fast path only while nothing is logged.
    for log in ["off", "json"] {
        let [outside, explaining, inside] = [(); 3].map(|()| free_port());
        let arguments = format!(
            "--access-log {log} --listen 0.0.0.0:{outside}=shop/one --listen 0.0.0.0:{explaining}=shop/one+explain \
             --listen 0.0.0.0:{inside}=shop/one+mesh"
        );
        let _proxy = Proxy::with(&world, &arguments).await;
        let call = async |port: u16, header: &str| {
            let request = format!("GET / HTTP/1.1\r\nhost: one.shop\r\n{header}connection: close\r\n\r\n");
            let head = read_head(&mut say(&format!("127.0.0.1:{port}"), request).await).await;
            assert!(head.starts_with("http/1.1 200 "), "{head}");
            head.replace("x-instance: secret-name", "")
        };
        let explain = "x-fairmesh-explain: true\r\n";
        for (port, load, names) in [(outside, false, false), (explaining, false, true), (inside, true, true)]
        {
            let plain = call(port, "").await;
            assert_eq!(plain.contains("endpoint-load-metrics"), load, "{log}: {plain}");
            let explained = call(port, explain).await;
            assert_eq!(explained.contains("endpoint-load-metrics"), load, "{log}: {explained}");
            assert_eq!(explained.contains("secret-name"), names, "{log}: {explained}");
            assert!(explained.contains("x-fairmesh-attempts: 1"), "{log}: {explained}");
        }
    }
}
