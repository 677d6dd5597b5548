use std::{fs, path::Path, sync::atomic::Ordering};

use super::*;
use crate::{
    InstanceRef,
    testing::{TestRegistry, cart, endpoint, instance_ref},
};

/// Scans a source as `run` does.
struct Scanner {
    source: FileSource,
    known: KnownFiles,
}

impl Scanner {
    fn at(test: &TestRegistry, path: &Path) -> Self {
        let source = FileSource::new(test.registry.clone(), path);
        let known = source.load_known();
        Self { source, known }
    }

    async fn scan(&mut self) -> FileStatus {
        self.source.scan(&mut self.known).await;
        self.source.status()
    }

    /// Scans twice, so that the content is accepted.
    async fn accept(&mut self) -> FileStatus {
        self.scan().await;
        self.scan().await
    }
}

fn list(service: &str, instances: &[&str]) -> String {
    let entries =
        instances.iter().map(|i| format!("  - {{instance: {i}, address: '10.0.0.7:80', region: eu}}\n"));
    format!("kind: Endpoints\nservice: {service}\nendpoints:\n{}", entries.collect::<String>())
}

fn registered(test: &TestRegistry) -> Vec<String> {
    test.registry.endpoints(&cart()).iter().map(|held| held.endpoint.instance.to_string()).collect()
}

#[tokio::test]
async fn endpoint_file_removes_only_endpoints_it_listed() {
    let (test, folder) = (TestRegistry::new(), tempfile::tempdir().unwrap());
    let file = folder.path().join("shop.yaml");
    test.registry.register(&[endpoint("other")]).await.unwrap();
    fs::write(&file, list("shop/cart", &["a", "b"])).unwrap();
    let mut scanner = Scanner::at(&test, &file);
    assert_eq!(scanner.accept().await, FileStatus { endpoints: 2, errors: BTreeMap::new() });
    assert_eq!(registered(&test), ["a", "b", "other"]);
    let revision = test.revision();
    scanner.accept().await;
    assert_eq!(test.revision(), revision, "nothing changed, nothing is written");

    fs::write(&file, list("shop/cart", &["b"])).unwrap();
    // A new process recognises the endpoints of the previous process by their label.
    let mut scanner = Scanner::at(&test, &file);
    scanner.accept().await;
    assert_eq!(registered(&test), ["b", "other"]);

    fs::write(&file, list("shop/elsewhere", &["b"])).unwrap();
    scanner.accept().await;
    assert_eq!(registered(&test), ["other"]);
    fs::remove_file(&file).unwrap();
    scanner.accept().await;
    let moved = InstanceRef { service: "shop/elsewhere".parse().unwrap(), ..instance_ref("b") };
    assert_eq!(
        test.registry.endpoints(&moved.service).len(),
        1,
        "a missing path is read_error, not an order"
    );
}

#[tokio::test]
async fn parsed_endpoints_of_file_are_freed_once_registered() {
    let (test, folder) = (TestRegistry::new(), tempfile::tempdir().unwrap());
    let file = folder.path().join("shop.yaml");
    fs::write(&file, list("shop/cart", &["a", "b"])).unwrap();
    let mut scanner = Scanner::at(&test, &file);
    test.store.full.store(true, Ordering::Relaxed);
    assert_eq!(scanner.accept().await.errors.len(), 1);
    let due = |scanner: &Scanner| scanner.known.files.values().filter_map(|file| file.due.clone()).count();
    assert_eq!(due(&scanner), 1, "they are tried again");
    test.store.full.store(false, Ordering::Relaxed);
    assert_eq!(scanner.scan().await, FileStatus { endpoints: 2, errors: BTreeMap::new() });
    assert_eq!((due(&scanner), registered(&test)), (0, vec!["a".to_owned(), "b".to_owned()]));
    assert_eq!(scanner.scan().await.endpoints, 2, "the number stays");
}

#[tokio::test]
async fn invalid_endpoint_file_keeps_last_valid_endpoints_and_shows_error() {
    let (test, folder) = (TestRegistry::new(), tempfile::tempdir().unwrap());
    let file = folder.path().join("shop.yaml");
    fs::write(&file, list("shop/cart", &["a"])).unwrap();
    let mut scanner = Scanner::at(&test, folder.path());
    scanner.accept().await;
    for (edit, complaint) in [
        ("kind: Endpoints\nservice: cart\nendpoints: []\n".to_owned(), "shop.yaml:2:10: "),
        ("kind: Service\nname: shop/cart\n".to_owned(), "fairmesh apply -f"),
        (list("shop/cart", &["a"]).replace("region", "lease: 10s, region"), "leave it out"),
        (list("shop/cart", &["a"]).replace("region", "regoin"), "did you mean 'region'?"),
        (list("shop/cart", &["a", "a"]), "shop.yaml:5:"),
        (
            format!("{}---\n{}", list("shop/cart", &["a"]), list("shop/cart", &["b", "a"])),
            "shop.yaml:6: 'a' of shop/cart is listed in the document of line 1 too",
        ),
        (String::new(), "it is empty"),
    ] {
        fs::write(&file, edit).unwrap();
        let status = scanner.accept().await;
        let file = folder.path().join("shop.yaml").display().to_string();
        assert!(status.errors[&file].contains(complaint), "{status:?}");
        assert_eq!(registered(&test), ["a"]);
        assert_eq!(scanner.accept().await, status, "the status shows a persistent error");
    }
    fs::write(&file, list("shop/cart", &["b"])).unwrap();
    assert_eq!(scanner.accept().await.errors, BTreeMap::new());
    assert_eq!(registered(&test), ["b"]);
}

#[tokio::test]
async fn endpoint_folder_follows_added_and_removed_files() {
    let (test, folder) = (TestRegistry::new(), tempfile::tempdir().unwrap());
    let mut scanner = Scanner::at(&test, folder.path());
    assert_eq!(scanner.accept().await, FileStatus::default());
    fs::write(folder.path().join("one.yaml"), list("shop/cart", &["a"])).unwrap();
    fs::write(folder.path().join("two.yml"), list("shop/cart", &["b"])).unwrap();
    fs::write(folder.path().join(".two.yaml"), "not: ours").unwrap();
    fs::write(folder.path().join("README.md"), "# not ours").unwrap();
    assert_eq!(scanner.accept().await.endpoints, 2);
    fs::remove_file(folder.path().join("one.yaml")).unwrap();
    assert_eq!(scanner.accept().await, FileStatus { endpoints: 1, errors: BTreeMap::new() });
    assert_eq!(registered(&test), ["b"]);
}

#[tokio::test]
async fn failed_registration_from_endpoint_file_is_retried() {
    let (test, folder) = (TestRegistry::new(), tempfile::tempdir().unwrap());
    fs::write(folder.path().join("one.yaml"), list("shop/cart", &["a"])).unwrap();
    let mut scanner = Scanner::at(&test, folder.path());
    test.store.full.store(true, Ordering::Relaxed);
    let file = folder.path().join("one.yaml").display().to_string();
    assert!(scanner.accept().await.errors[&file].contains("disk is full"));
    test.store.full.store(false, Ordering::Relaxed);
    assert_eq!(scanner.accept().await.errors, BTreeMap::new());
    assert_eq!(registered(&test), ["a"]);
}

#[tokio::test]
async fn missing_endpoint_source_path_is_named_in_error() {
    let test = TestRegistry::new();
    let status = Scanner::at(&test, Path::new("/nowhere/shop.yaml")).accept().await;
    assert!(status.errors["/nowhere/shop.yaml"].contains("create it"), "{status:?}");
}

#[tokio::test]
async fn endpoint_file_is_accepted_after_two_equal_scans() {
    let (test, folder) = (TestRegistry::new(), tempfile::tempdir().unwrap());
    let file = folder.path().join("one.yaml");
    fs::write(&file, list("shop/cart", &["a", "b"])).unwrap();
    let mut scanner = Scanner::at(&test, folder.path());
    scanner.scan().await;
    assert!(registered(&test).is_empty());
    scanner.scan().await;
    assert_eq!(registered(&test), ["a", "b"]);
    // The file is half written, then missing, and then present again.
    fs::write(&file, list("shop/cart", &["a"])).unwrap();
    scanner.scan().await;
    fs::remove_file(&file).unwrap();
    scanner.scan().await;
    fs::write(&file, list("shop/cart", &["a", "b"])).unwrap();
    let revision = test.revision();
    assert_eq!(scanner.accept().await, FileStatus { endpoints: 2, errors: BTreeMap::new() });
    assert_eq!((test.revision(), registered(&test)), (revision, vec!["a".into(), "b".into()]));
}

#[tokio::test]
async fn endpoint_files_of_equal_name_in_two_folders_are_independent() {
    let test = TestRegistry::new();
    let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let mut sources = Vec::new();
    for (folder, instance) in folders.iter().zip(["a", "b"]) {
        fs::write(folder.path().join("shop.yaml"), list("shop/cart", &[instance])).unwrap();
        let mut scanner = Scanner::at(&test, folder.path());
        scanner.accept().await;
        sources.push(scanner);
    }
    assert_eq!(registered(&test), ["a", "b"]);
}

#[tokio::test]
async fn endpoint_file_deleted_during_downtime_loses_its_endpoints() {
    let (test, folder) = (TestRegistry::new(), tempfile::tempdir().unwrap());
    let elsewhere = tempfile::tempdir().unwrap();
    for (at, instance) in [(&folder, "a"), (&elsewhere, "b")] {
        fs::write(at.path().join("one.yaml"), list("shop/cart", &[instance])).unwrap();
        Scanner::at(&test, at.path()).accept().await;
    }
    // With no file at all, the folder would count as absent.
    fs::write(folder.path().join("two.yaml"), list("shop/web", &["w"])).unwrap();
    fs::remove_file(folder.path().join("one.yaml")).unwrap();
    fs::remove_file(elsewhere.path().join("one.yaml")).unwrap();
    let mut restarted = Scanner::at(&test, folder.path());
    restarted.scan().await;
    assert_eq!(registered(&test), ["a", "b"], "it may only be missing for a moment");
    restarted.scan().await;
    assert_eq!(registered(&test), ["b"], "another source registered that one");
}

#[tokio::test]
async fn emptied_endpoint_folder_counts_as_unmounted_and_keeps_endpoints() {
    let (test, folder) = (TestRegistry::new(), tempfile::tempdir().unwrap());
    let file = folder.path().join("shop.yaml");
    fs::write(&file, list("shop/cart", &["a"])).unwrap();
    let mut scanner = Scanner::at(&test, folder.path());
    scanner.accept().await;
    fs::remove_file(&file).unwrap();
    let status = scanner.accept().await;
    assert!(status.errors.values().any(|error| error.contains("mount it again")), "{status:?}");
    // A new process, which knows the files from the labels of their endpoints, treats the folder alike.
    let mut scanner = Scanner::at(&test, folder.path());
    scanner.accept().await;
    assert_eq!(registered(&test), ["a"]);
    fs::write(folder.path().join("none.yaml"), "kind: Endpoints\nservice: shop/cart\nendpoints: []\n")
        .unwrap();
    scanner.accept().await;
    assert_eq!(
        registered(&test),
        Vec::<String>::new(),
        "another file is there, so that this one was deleted"
    );
}
