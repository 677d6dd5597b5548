//! Builds packages with `make package` from the binary under test, unpacks each, and runs its binary.

#![allow(clippy::unwrap_used, reason = "what a test cannot do without has failed it")]

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    sync::OnceLock,
};

use fairmesh_test_support::skipped;
use serde_json::Value;
use tempfile::TempDir;

/// Version of all packages.
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Folder with the packages; `None` if a packaging tool is missing.
fn packages() -> Option<&'static Path> {
    static BUILT: OnceLock<Option<TempDir>> = OnceLock::new();
    let built = BUILT.get_or_init(|| {
        let missing =
            ["dpkg-deb", "objcopy", "gzip"].into_iter().find(|tool| run(tool, &["--version"]).is_err());
        if let Some(tool) = missing {
            skipped("a tool that makes packages is missing", tool);
            return None;
        }
        let out = tempfile::tempdir().unwrap();
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../scripts/package.sh");
        let output = Command::new(script)
            .env("BINARY", env!("CARGO_BIN_EXE_fairmesh"))
            .env("OUT", out.path())
            // Fast compression: each test package is read once.
            .env("COMPRESSION", "1")
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Some(out)
    });
    built.as_ref().map(TempDir::path)
}

/// Standard output of a command, or its error output if it fails.
fn run(program: &str, args: &[&str]) -> Result<String, String> {
    let output = Command::new(program).args(args).output().map_err(|error| error.to_string())?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
    }
}

/// The package whose file name ends with `end`.
fn package(folder: &Path, end: &str) -> PathBuf {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut found = entries.filter(|path| path.to_str().unwrap().ends_with(end));
    found.next().unwrap_or_else(|| panic!("no {end} in {}", folder.display()))
}

fn unpack(archive: &Path) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let (archive, into) = (archive.to_str().unwrap(), folder.path().to_str().unwrap());
    run("tar", &["--extract", "--file", archive, "--directory", into]).unwrap();
    folder
}

/// Asserts that a package root has all files and that its binary works.
fn assert_complete(root: &Path) {
    let binary = root.join("usr/bin/fairmesh");
    let version = run(binary.to_str().unwrap(), &["version", "--client"]).unwrap();
    assert!(version.starts_with(&format!("fairmesh {VERSION}")), "{version}");
    for unit in ["control", "agent", "proxy", "replica", "gateway", "node"] {
        let text =
            fs::read_to_string(root.join(format!("usr/lib/systemd/system/fairmesh-{unit}.service"))).unwrap();
        assert!(text.contains("ExecStart=/usr/bin/fairmesh ") && !text.contains("/usr/local"), "{text}");
    }
    for file in [
        "usr/lib/sysusers.d/fairmesh.conf",
        "usr/share/man/man1/fairmesh.1.gz",
        "usr/share/man/man1/fairmesh-proxy-routes.1.gz",
        "usr/share/bash-completion/completions/fairmesh",
        "usr/share/zsh/vendor-completions/_fairmesh",
        "usr/share/fish/vendor_completions.d/fairmesh.fish",
        "usr/share/fairmesh/documents.schema.json",
        "usr/share/fairmesh/grafana/fleet.json",
        "usr/share/fairmesh/prometheus/alerts.yaml",
        "usr/share/doc/fairmesh/copyright",
        "usr/share/doc/fairmesh/THIRD-PARTY.web.md",
    ] {
        assert!(root.join(file).is_file(), "{file}");
    }
}

#[test]
fn packages_contain_working_binary_and_all_files() {
    let Some(folder) = packages() else { return };
    // Unpacked once: the binary of a debug build is large.
    let tarball = unpack(&package(folder, &format!("{}.tar.gz", std::env::consts::ARCH)));
    let root = tarball.path().join(format!("fairmesh-{VERSION}-{}", std::env::consts::ARCH));
    assert_complete(&root);
    the_symbols(folder, &root.join("usr/bin/fairmesh"));
    the_deb(folder);
    the_image(folder);
    let sums = folder.join("SHA256SUMS");
    let check = Command::new("sha256sum").args(["--check", "--quiet"]).arg(sums).current_dir(folder).status();
    assert!(check.unwrap().success());
}

fn the_deb(folder: &Path) {
    let deb = package(folder, ".deb");
    let deb = deb.to_str().unwrap();
    let root = tempfile::tempdir().unwrap();
    let fields = run("dpkg-deb", &["--field", deb, "Package", "Version", "Depends"]).unwrap();
    assert!(
        fields.contains("Package: fairmesh") && fields.contains(VERSION) && fields.contains("libc6"),
        "{fields}"
    );
    // Installed into a separate root, as image builders do.
    let database = root.path().join("var/lib/dpkg");
    for below in ["info", "updates", "triggers"] {
        fs::create_dir_all(database.join(below)).unwrap();
    }
    fs::write(database.join("status"), "").unwrap();
    let into = format!("--root={}", root.path().display());
    let log = format!("--log={}", root.path().join("dpkg.log").display());
    let install =
        [&into, &log, "--force-script-chrootless", "--force-depends", "--force-not-root", "--install", deb];
    match run("dpkg", &install) {
        Ok(_) => {
            let status = fs::read_to_string(database.join("status")).unwrap();
            assert!(status.contains("Status: install ok installed"), "{status}");
        }
        Err(error) => {
            skipped("dpkg installs only for root", error);
            run("dpkg-deb", &["--extract", deb, root.path().to_str().unwrap()]).unwrap();
        }
    }
    assert_complete(root.path());
}

/// Asserts that the packaged binary is stripped and that its symbols are stored under its build id for debuggers.
fn the_symbols(folder: &Path, stripped: &Path) {
    let debug = unpack(&package(folder, "-debug.tar.gz"));
    let binary = run("find", &[debug.path().to_str().unwrap(), "-type", "f"]).unwrap();
    let symbols = binary.lines().find(|path| path.ends_with(".debug")).unwrap();
    assert!(run("readelf", &["--sections", "--wide", symbols]).unwrap().contains("debug_line"));
    let stripped = stripped.to_str().unwrap();
    let sections = run("readelf", &["--sections", "--wide", stripped]).unwrap();
    assert!(!sections.contains("debug_line") && sections.contains("gnu_debuglink"), "{sections}");
    let id = run("readelf", &["--notes", stripped]).unwrap();
    let id = id.split("Build ID: ").nth(1).unwrap().split_whitespace().next().unwrap().to_owned();
    assert!(symbols.ends_with(&format!(".build-id/{}/{}.debug", &id[..2], &id[2..])), "{symbols} of {id}");
}

/// Asserts that every descriptor of the image matches its blob, and that the image has all libraries that the binary
/// loads.
fn the_image(folder: &Path) {
    let image = unpack(&package(folder, "-oci.tar"));
    let blob = |descriptor: &Value| {
        let digest = descriptor["digest"].as_str().unwrap().strip_prefix("sha256:").unwrap().to_owned();
        let path = image.path().join("blobs/sha256").join(&digest);
        assert_eq!(fs::metadata(&path).unwrap().len(), descriptor["size"].as_u64().unwrap());
        assert!(run("sha256sum", &[path.to_str().unwrap()]).unwrap().starts_with(&digest));
        path
    };
    let json = |path: &Path| serde_json::from_slice::<Value>(&fs::read(path).unwrap()).unwrap();
    let index = json(&image.path().join("index.json"));
    let manifest = json(&blob(&index["manifests"][0]));
    let config = json(&blob(&manifest["config"]));
    assert_eq!(config["config"]["Entrypoint"][0], "/usr/bin/fairmesh");
    assert_eq!(config["config"]["User"], "65532:65532");
    let root = unpack(&blob(&manifest["layers"][0]));
    let root = root.path().to_str().unwrap();
    match run("unshare", &["--map-root-user", "true"]) {
        Ok(_) => {
            let chroot = ["--map-root-user", "chroot", root, "/usr/bin/fairmesh", "version", "--client"];
            assert!(run("unshare", &chroot).unwrap().contains(VERSION));
        }
        Err(error) => skipped("namespaces cannot be made", error),
    }
}
