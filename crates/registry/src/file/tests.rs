use std::{fs, path::Path, sync::atomic::Ordering};

use super::*;
use crate::{
    InstanceRef,
    testing::{Bench, cart, endpoint, who},
};

/// A source as `run` drives it, one look at a time.
struct Looking {
    source: FileSource,
    memory: Memory,
}

impl Looking {
    fn at(bench: &Bench, path: &Path) -> Self {
        let source = FileSource::new(bench.registry.clone(), path);
        let memory = source.remember();
        Self { source, memory }
    }

    async fn once(&mut self) -> FileStatus {
        self.source.look(&mut self.memory).await;
        self.source.status()
    }

    /// Until what is there counts.
    async fn look(&mut self) -> FileStatus {
        self.once().await;
        self.once().await
    }
}

fn list(service: &str, instances: &[&str]) -> String {
    let entries =
        instances.iter().map(|i| format!("  - {{instance: {i}, address: '10.0.0.7:80', region: eu}}\n"));
    format!("kind: Endpoints\nservice: {service}\nendpoints:\n{}", entries.collect::<String>())
}

fn registered(bench: &Bench) -> Vec<String> {
    bench.registry.endpoints(&cart()).iter().map(|held| held.endpoint.instance.to_string()).collect()
}

#[tokio::test]
async fn a_file_owns_what_it_lists_and_nothing_else() {
    let (bench, folder) = (Bench::new(), tempfile::tempdir().unwrap());
    let file = folder.path().join("shop.yaml");
    bench.registry.register(&[endpoint("other")]).await.unwrap();
    fs::write(&file, list("shop/cart", &["a", "b"])).unwrap();
    let mut looking = Looking::at(&bench, &file);
    assert_eq!(looking.look().await, FileStatus { endpoints: 2, errors: BTreeMap::new() });
    assert_eq!(registered(&bench), ["a", "b", "other"]);
    let revision = bench.revision();
    looking.look().await;
    assert_eq!(bench.revision(), revision, "nothing changed, nothing is written");

    fs::write(&file, list("shop/cart", &["b"])).unwrap();
    // Another process, which finds by the label what the one before wrote.
    let mut looking = Looking::at(&bench, &file);
    looking.look().await;
    assert_eq!(registered(&bench), ["b", "other"]);

    fs::write(&file, list("shop/elsewhere", &["b"])).unwrap();
    looking.look().await;
    assert_eq!(registered(&bench), ["other"]);
    fs::remove_file(&file).unwrap();
    looking.look().await;
    let moved = InstanceRef { service: "shop/elsewhere".parse().unwrap(), ..who("b") };
    assert_eq!(bench.registry.endpoints(&moved.service).len(), 1, "a missing path is trouble, not an order");
}

#[tokio::test]
async fn a_bad_edit_keeps_the_last_good_state_and_says_so() {
    let (bench, folder) = (Bench::new(), tempfile::tempdir().unwrap());
    let file = folder.path().join("shop.yaml");
    fs::write(&file, list("shop/cart", &["a"])).unwrap();
    let mut looking = Looking::at(&bench, folder.path());
    looking.look().await;
    for (edit, complaint) in [
        ("kind: Endpoints\nservice: cart\nendpoints: []\n".to_owned(), "shop.yaml:2:10: "),
        ("kind: Service\nname: shop/cart\n".to_owned(), "fairmesh apply -f"),
        (list("shop/cart", &["a"]).replace("region", "lease: 10s, region"), "leave it out"),
        (list("shop/cart", &["a"]).replace("region", "regoin"), "did you mean 'region'?"),
        (String::new(), "it is empty"),
    ] {
        fs::write(&file, edit).unwrap();
        let status = looking.look().await;
        let file = folder.path().join("shop.yaml").display().to_string();
        assert!(status.errors[&file].contains(complaint), "{status:?}");
        assert_eq!(registered(&bench), ["a"]);
        assert_eq!(looking.look().await, status, "it is said as long as it is so");
    }
    fs::write(&file, list("shop/cart", &["b"])).unwrap();
    assert_eq!(looking.look().await.errors, BTreeMap::new());
    assert_eq!(registered(&bench), ["b"]);
}

#[tokio::test]
async fn files_of_a_folder_come_and_go() {
    let (bench, folder) = (Bench::new(), tempfile::tempdir().unwrap());
    let mut looking = Looking::at(&bench, folder.path());
    assert_eq!(looking.look().await, FileStatus::default());
    fs::write(folder.path().join("one.yaml"), list("shop/cart", &["a"])).unwrap();
    fs::write(folder.path().join("two.yml"), list("shop/cart", &["b"])).unwrap();
    fs::write(folder.path().join(".two.yaml"), "not: ours").unwrap();
    fs::write(folder.path().join("README.md"), "# not ours").unwrap();
    assert_eq!(looking.look().await.endpoints, 2);
    fs::remove_file(folder.path().join("one.yaml")).unwrap();
    assert_eq!(looking.look().await, FileStatus { endpoints: 1, errors: BTreeMap::new() });
    assert_eq!(registered(&bench), ["b"]);
}

#[tokio::test]
async fn what_the_store_did_not_take_is_tried_again() {
    let (bench, folder) = (Bench::new(), tempfile::tempdir().unwrap());
    fs::write(folder.path().join("one.yaml"), list("shop/cart", &["a"])).unwrap();
    let mut looking = Looking::at(&bench, folder.path());
    bench.store.full.store(true, Ordering::Relaxed);
    let file = folder.path().join("one.yaml").display().to_string();
    assert!(looking.look().await.errors[&file].contains("disk is full"));
    bench.store.full.store(false, Ordering::Relaxed);
    assert_eq!(looking.look().await.errors, BTreeMap::new());
    assert_eq!(registered(&bench), ["a"]);
}

#[tokio::test]
async fn a_path_that_is_not_there_is_named() {
    let bench = Bench::new();
    let status = Looking::at(&bench, Path::new("/nowhere/shop.yaml")).look().await;
    assert!(status.errors["/nowhere/shop.yaml"].contains("create it"), "{status:?}");
}

#[tokio::test]
async fn what_only_one_look_has_found_does_not_count() {
    let (bench, folder) = (Bench::new(), tempfile::tempdir().unwrap());
    let file = folder.path().join("one.yaml");
    fs::write(&file, list("shop/cart", &["a", "b"])).unwrap();
    let mut looking = Looking::at(&bench, folder.path());
    looking.once().await;
    assert!(registered(&bench).is_empty());
    looking.once().await;
    assert_eq!(registered(&bench), ["a", "b"]);
    // Half written, away, and there again.
    fs::write(&file, list("shop/cart", &["a"])).unwrap();
    looking.once().await;
    fs::remove_file(&file).unwrap();
    looking.once().await;
    fs::write(&file, list("shop/cart", &["a", "b"])).unwrap();
    let revision = bench.revision();
    assert_eq!(looking.look().await, FileStatus { endpoints: 2, errors: BTreeMap::new() });
    assert_eq!((bench.revision(), registered(&bench)), (revision, vec!["a".into(), "b".into()]));
}

#[tokio::test]
async fn files_of_one_name_in_two_folders_do_not_quarrel() {
    let bench = Bench::new();
    let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let mut sources = Vec::new();
    for (folder, instance) in folders.iter().zip(["a", "b"]) {
        fs::write(folder.path().join("shop.yaml"), list("shop/cart", &[instance])).unwrap();
        let mut looking = Looking::at(&bench, folder.path());
        looking.look().await;
        sources.push(looking);
    }
    assert_eq!(registered(&bench), ["a", "b"]);
}

#[tokio::test]
async fn a_file_that_was_deleted_while_nobody_looked_lists_nothing() {
    let (bench, folder) = (Bench::new(), tempfile::tempdir().unwrap());
    let elsewhere = tempfile::tempdir().unwrap();
    for (at, instance) in [(&folder, "a"), (&elsewhere, "b")] {
        fs::write(at.path().join("one.yaml"), list("shop/cart", &[instance])).unwrap();
        Looking::at(&bench, at.path()).look().await;
    }
    fs::remove_file(folder.path().join("one.yaml")).unwrap();
    fs::remove_file(elsewhere.path().join("one.yaml")).unwrap();
    let mut restarted = Looking::at(&bench, folder.path());
    restarted.once().await;
    assert_eq!(registered(&bench), ["a", "b"], "it may only be away for a moment");
    restarted.once().await;
    assert_eq!(registered(&bench), ["b"], "another source answers for that one");
}
