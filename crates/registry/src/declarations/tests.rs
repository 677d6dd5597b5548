use super::*;
use crate::testing::{Bench, anyone, cart, endpoint};

fn is_declared(bench: &Bench) -> bool {
    bench.registry.service(&cart()).unwrap().is_some()
}

/// So long that a declaration without endpoints goes, with all looks at it.
async fn wait() {
    tokio::time::sleep(GRACE + 3 * LOOK).await;
}

#[tokio::test(start_paused = true)]
async fn a_declaration_by_registration_goes_minutes_after_the_last_endpoint_and_leaves_nothing() {
    let bench = Bench::running();
    bench.registry.register(&[endpoint("a")]).await.unwrap();
    wait().await;
    assert!(is_declared(&bench), "it has an endpoint");
    bench.registry.deregister(&[anyone("a")]).await.unwrap();
    tokio::time::sleep(GRACE - 2 * LOOK).await;
    assert!(is_declared(&bench), "a program may start again");
    bench.registry.register(&[endpoint("a")]).await.unwrap();
    wait().await;
    bench.registry.deregister(&[anyone("a")]).await.unwrap();
    wait().await;
    assert!(bench.node.read(&[Prefix::everything()]).1.is_empty(), "its history has gone as well");
    assert_eq!(bench.registry.self_declared(), (0, 0, 1));
    bench.registry.register(&[endpoint("a")]).await.unwrap();
    assert!(is_declared(&bench), "as the first time");
}

#[tokio::test(start_paused = true)]
async fn one_from_before_a_restart_goes_and_one_that_an_operator_says_again_stays() {
    for adopted in [false, true] {
        let bench = Bench::new();
        bench.registry.register(&[endpoint("a")]).await.unwrap();
        bench.registry.deregister(&[anyone("a")]).await.unwrap();
        if adopted {
            let op = adopt_declaration(&bench.node, &cart()).unwrap();
            bench.registry.write(vec![op]).await.unwrap();
            assert!(adopt_declaration(&bench.node, &cart()).is_none());
        }
        let restarted = bench.restarted();
        restarted.run();
        wait().await;
        assert_eq!(is_declared(&restarted), adopted);
    }
}

#[tokio::test(start_paused = true)]
async fn registrations_declare_a_bounded_number_of_services() {
    let bench = Bench::new();
    for number in 0..MAX_DECLARED - 1 {
        bench.registry.declarations().add(format!("shop/s{number}").parse().unwrap());
    }
    bench.registry.register(&[endpoint("a")]).await.unwrap();
    let mut another = endpoint("a");
    another.service = "shop/another".parse().unwrap();
    let refused = bench.registry.register(&[another]).await.unwrap_err();
    assert!(matches!(&refused, RegistryError::Refused(_)), "{refused:?}");
    assert!(refused.to_string().contains("fairmesh apply"), "{refused}");
    bench.registry.register(&[endpoint("b")]).await.expect("its service is declared");
    assert_eq!(bench.registry.self_declared(), (MAX_DECLARED, 1, 0));
}
