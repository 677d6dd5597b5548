//! Runs the README's shell blocks as printed. They use the default ports and folders, so each runs in its own
//! namespaces.

use std::{
    env, fs,
    path::Path,
    process::{Command, Stdio},
};

use fairmesh_test_support::skipped;

/// Namespaces in which the user is root, with a loopback interface, empty system folders, and processes that end with
/// the first process of the namespace.
const NAMESPACES: [&str; 7] =
    ["--map-root-user", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"];
const MACHINE: &str = "ip link set lo up && mount -t tmpfs none /run && mount -t tmpfs none /var/lib";

/// First shell block of the README below this heading.
fn block(heading: &str) -> String {
    let readme = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../README.md");
    let readme = fs::read_to_string(readme).unwrap();
    let (_, section) = readme.split_once(&format!("\n{heading}\n")).unwrap();
    let (_, block) = section.split_once("```sh\n").unwrap();
    block.split_once("```").unwrap().0.to_owned()
}

/// Runs a script in bash with job control, as in a terminal, and stops at the first command that fails. Returns the
/// output; `None` if namespaces are not permitted.
fn paste(script: &str) -> Option<String> {
    let namespaces = |shell: &str| {
        let mut command = Command::new("unshare");
        command.args(NAMESPACES).args(["bash", "-c", shell]).stdin(Stdio::null());
        for (name, _) in env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("FAIRMESH")) {
            command.env_remove(name);
        }
        command
    };
    match namespaces(MACHINE).output() {
        Ok(output) if output.status.success() => {}
        Ok(output) => {
            skipped("namespaces cannot be made", String::from_utf8_lossy(&output.stderr));
            return None;
        }
        Err(error) => {
            skipped("namespaces cannot be made", error);
            return None;
        }
    }
    let binaries = Path::new(env!("CARGO_BIN_EXE_fairmesh")).parent().unwrap().display();
    let whole = format!("set -me\n{MACHINE}\nexport PATH={binaries}:$PATH\n{script}");
    let output = namespaces(&whole).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{}\n{out}\n{err}", output.status);
    Some(out)
}

#[test]
fn every_shell_block_of_readme_is_run_by_some_test() {
    let readme = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../README.md");
    let readme = fs::read_to_string(readme).unwrap();
    let pasted = ["## Try it by hand", "### Each process by itself"].map(block);
    // The demo has its own test, and the other one runs all tests.
    let by_name = ["make demo ", "make test "];
    let is_run = |block: &&str| {
        pasted.iter().any(|one| one == block) || by_name.iter().any(|name| block.starts_with(name))
    };
    let blocks: Vec<&str> =
        readme.split("```sh\n").skip(1).filter_map(|rest| rest.split("```").next()).collect();
    let forgotten: Vec<_> = blocks.iter().filter(|block| !is_run(block)).collect();
    assert!(blocks.len() >= 4 && forgotten.is_empty(), "{forgotten:#?}");
}

#[test]
fn readme_block_try_it_by_hand_works_when_pasted() {
    let block = block("## Try it by hand");
    let (build, rest) = block.split_once('\n').unwrap();
    assert!(build.starts_with("cargo build "), "the binary under test is built already: {build}");
    // The server ends at once although a program has just called it; the mesh ends after it, as the README says.
    let whole = format!("{rest}kill %2; wait %2 || true; kill %1; wait %1\n");
    let Some(out) = paste(&whole) else { return };
    called_twice(&out);
}

#[test]
fn readme_block_each_process_by_itself_works_when_pasted() {
    let Some(out) = paste(&block("### Each process by itself")) else { return };
    // The instance has the name of the program, and its endpoint terminates mutual TLS.
    for part in ["shop/hello", ":8000", "by mutual TLS", "serving"] {
        assert!(out.contains(part), "{part} in {out}");
    }
    called_twice(&out);
}

/// Asserts that the service responded through the library and through the proxy.
fn called_twice(out: &str) {
    let listings = out.matches("<title>Directory listing for /</title>").count();
    assert_eq!(listings, 2, "{out}");
}

/// Pages: the README and the pages in `docs`.
fn pages() -> Vec<std::path::PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..");
    let mut pages = vec![root.join("README.md")];
    let mut folders = vec![root.join("docs")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            match path.is_dir() {
                true => folders.push(path),
                false if path.extension().is_some_and(|end| end == "md") => pages.push(path),
                false => {}
            }
        }
    }
    pages
}

/// Anchors of headings, as GitHub makes them, and of table rows.
fn anchors(page: &str) -> Vec<String> {
    let mut is_code = false;
    let headings = page.lines().filter(|line| {
        is_code ^= line.starts_with("```");
        !is_code && line.starts_with('#')
    });
    let anchor = |line: &str| {
        let text = line.trim_start_matches('#').trim().to_lowercase();
        let kept = text.chars().filter(|c| c.is_alphanumeric() || [' ', '-', '_'].contains(c));
        kept.map(|c| if c == ' ' { '-' } else { c }).collect()
    };
    let rows = page.split("| <a id=\"").skip(1).filter_map(|rest| rest.split_once('"'));
    headings.map(anchor).chain(rows.map(|(id, _)| id.to_owned())).collect()
}

#[test]
fn links_of_documentation_pages_lead_to_files_and_headings() {
    let mut broken = Vec::new();
    for page in pages() {
        let text = fs::read_to_string(&page).unwrap();
        for link in text.split("](").skip(1).filter_map(|rest| rest.split_once(')')).map(|(link, _)| link) {
            if link.contains("://") || link.contains(' ') || link.starts_with("mailto:") {
                continue;
            }
            let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
            let target = if file.is_empty() { page.clone() } else { page.parent().unwrap().join(file) };
            let is_known = match fs::read_to_string(&target) {
                Ok(text) => anchor.is_empty() || anchors(&text).contains(&anchor.to_owned()),
                // A folder or a picture.
                Err(_) => target.exists() && anchor.is_empty(),
            };
            if !is_known {
                broken.push(format!("{}: {link}", page.file_name().unwrap().display()));
            }
        }
    }
    assert!(broken.is_empty(), "{broken:#?}");
}

#[test]
fn index_of_docs_lists_every_page() {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../docs");
    let index = fs::read_to_string(docs.join("README.md")).unwrap();
    let missing: Vec<_> = pages()
        .iter()
        .filter_map(|page| page.strip_prefix(&docs).ok().map(|page| page.display().to_string()))
        .filter(|page| page != "README.md" && !index.contains(&format!("]({page})")))
        .collect();
    assert!(missing.is_empty(), "docs/README.md does not list {missing:#?}");
}
