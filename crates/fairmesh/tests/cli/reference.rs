//! The commands that `docs/cli.md` prints in full, as they are printed.

use std::{fs, path::Path, process::Command};

use super::support::{Mesh, SHOP};

/// The words of a command and its options, of the first cell of a row: `identity rotate [--root]`.
fn command_of(span: &str) -> Option<(Vec<&str>, Vec<String>)> {
    let is_word =
        |word: &&str| word.chars().all(|c| c.is_ascii_lowercase() || c == '-') && !word.starts_with('-');
    let words: Vec<&str> = span.split(' ').take_while(is_word).collect();
    // Values, such as that of `--port N[-N]` and `--wait[=DURATION]`, are no options.
    let text = span.replace("[-N]", "").replace("[=", " ").replace(['[', ']', '|', '…', '\\'], " ");
    let options = text.split_whitespace().filter(|word| word.starts_with('-') && *word != "--");
    (!words.is_empty()).then(|| (words, options.map(str::to_owned).collect()))
}

#[test]
fn every_row_of_the_reference_is_a_command_with_its_options() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/cli.md");
    let page = fs::read_to_string(page).unwrap();
    let (mut commands, mut wrong) = (0, Vec::new());
    let rows = page.lines().filter(|line| line.starts_with("| `"));
    for cell in rows.filter_map(|row| row.split(" | ").next()) {
        for (words, options) in cell.split('`').skip(1).step_by(2).filter_map(command_of) {
            commands += 1;
            let help =
                Command::new(env!("CARGO_BIN_EXE_fairmesh")).args(&words).arg("--help").output().unwrap();
            let text = String::from_utf8(help.stdout).unwrap();
            let is_known = |option: &String| text.split([' ', ',', '[', '\n']).any(|word| word == option);
            let unknown: Vec<_> = options.into_iter().filter(|option| !is_known(option)).collect();
            if !help.status.success() || !unknown.is_empty() {
                wrong.push(format!("{}: {unknown:?}", words.join(" ")));
            }
        }
    }
    assert!(commands > 70 && wrong.is_empty(), "of {commands} commands: {wrong:#?}");
}

#[test]
fn the_first_commands_of_the_reference_work_as_printed() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/cli.md");
    let page = fs::read_to_string(page).unwrap();
    let block = page.split("```\n").nth(1).unwrap();
    let mesh = Mesh::start();
    mesh.file("shop.yaml", SHOP);
    let binaries = Path::new(env!("CARGO_BIN_EXE_fairmesh")).parent().unwrap();
    let mut run = 0;
    for (port, line) in (9000..).zip(block.lines()) {
        let output = Command::new("sh")
            .args(["-ec", line])
            .current_dir(mesh.path(""))
            .env_clear()
            .env("PATH", format!("{}:/usr/bin:/bin", binaries.display()))
            .env("FAIRMESH_CONTROL", mesh.address())
            .output()
            .unwrap();
        assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
        // Both replicas of the map that was applied.
        for (instance, region) in [("cart-0", "eu"), ("cart-1", "us")] {
            mesh.register("shop/cart", instance, region, port);
        }
        run += 1;
    }
    assert_eq!(run, 3, "{block}");
}
