//! The commands that `docs/cli.md` prints in full, as they are printed.

use std::{fs, path::Path, process::Command};

use super::support::{Mesh, SHOP};

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
