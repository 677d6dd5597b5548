use super::*;
use crate::{
    MAX_AUTO_DECLARED,
    testing::{TestRegistry, any_process, cart, endpoint},
};

fn is_declared(test: &TestRegistry) -> bool {
    test.registry.service(&cart()).unwrap().is_some()
}

/// Waits until an unused declaration has been removed, including the interval between scans.
async fn wait() {
    tokio::time::sleep(DECLARATION_GRACE + 3 * SCAN_INTERVAL).await;
}

#[tokio::test(start_paused = true)]
async fn automatic_declaration_expires_after_its_last_endpoint() {
    let test = TestRegistry::running();
    test.registry.register(&[endpoint("a")]).await.unwrap();
    wait().await;
    assert!(is_declared(&test), "it has an endpoint");
    test.registry.deregister(&[any_process("a")]).await.unwrap();
    tokio::time::sleep(DECLARATION_GRACE - 2 * SCAN_INTERVAL).await;
    assert!(is_declared(&test), "a program may start again");
    test.registry.register(&[endpoint("a")]).await.unwrap();
    wait().await;
    test.registry.deregister(&[any_process("a")]).await.unwrap();
    wait().await;
    assert!(test.node.read(&[Prefix::everything()]).1.is_empty(), "its history is deleted as well");
    assert_eq!(test.registry.self_declared(), (0, 0, 1));
    test.registry.register(&[endpoint("a")]).await.unwrap();
    assert!(is_declared(&test), "as the first time");
}

#[tokio::test(start_paused = true)]
async fn automatic_declarations_expire_after_restart_but_applied_ones_stay() {
    for adopted in [false, true] {
        let test = TestRegistry::new();
        test.registry.register(&[endpoint("a")]).await.unwrap();
        test.registry.deregister(&[any_process("a")]).await.unwrap();
        if adopted {
            let op = adopt_declaration(&test.node, &cart()).unwrap();
            test.registry.write(vec![op]).await.unwrap();
            assert!(adopt_declaration(&test.node, &cart()).is_none());
        }
        let restarted = test.restarted();
        restarted.run();
        wait().await;
        assert_eq!(is_declared(&restarted), adopted);
    }
}

#[tokio::test(start_paused = true)]
async fn services_declared_by_registrations_are_bounded() {
    let test = TestRegistry::new();
    for number in 0..MAX_AUTO_DECLARED - 1 {
        test.registry.declarations().add(format!("shop/s{number}").parse().unwrap(), None);
    }
    test.registry.register(&[endpoint("a")]).await.unwrap();
    let mut another = endpoint("a");
    another.service = "shop/another".parse().unwrap();
    let refused = test.registry.register(&[another]).await.unwrap_err();
    assert!(matches!(&refused, RegistryError::Refused(_)), "{refused:?}");
    assert!(refused.to_string().contains("fairmesh apply"), "{refused}");
    test.registry.register(&[endpoint("b")]).await.expect("its service is declared");
    assert_eq!(test.registry.self_declared(), (MAX_AUTO_DECLARED, 1, 0));
}
