//! Says whether the target has the kernel this is for (`cfg(supported)`), and turns the system call
//! table shared with the policy loader into a static array. A table that is not sorted, not unique
//! or not numeric stops the build.

use std::fmt::Write as _;
use std::path::Path;
use std::{env, fs, process};

const TABLE: &str = "../src/paddock/policy/syscalls.tsv";

fn main() {
    println!("cargo::rerun-if-changed={TABLE}");
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=PADDOCK_DEFAULT_SHELL_DIR");
    println!("cargo::rustc-check-cfg=cfg(supported)");
    if supported() {
        println!("cargo::rustc-cfg=supported");
    }
    if let Err(message) = generate() {
        println!("cargo::error={TABLE}: {message}");
        process::exit(1);
    }
}

fn supported() -> bool {
    let target = |part: &str| env::var(format!("CARGO_CFG_TARGET_{part}")).unwrap_or_default();
    let forced = env::var_os("CARGO_FEATURE_FORCE_UNSUPPORTED").is_some();
    !forced && target("OS") == "linux" && matches!(target("ARCH").as_str(), "x86_64" | "aarch64")
}

fn generate() -> Result<(), String> {
    let table = fs::read_to_string(TABLE).map_err(|error| error.to_string())?;
    let mut rust = String::from("pub static TABLE: &[Syscall] = &[\n");
    let mut previous = "";
    let mut row = 0;
    let (mut by_number_x86_64, mut by_number_aarch64) = (Vec::new(), Vec::new());
    for (index, line) in table.lines().enumerate() {
        if line.starts_with('#') || line.is_empty() {
            continue;
        }
        let columns: Vec<&str> = line.split('\t').collect();
        let [name, x86_64, aarch64, _gone] = columns[..] else {
            return Err(format!("line {}: expected four columns", index + 1));
        };
        if name <= previous {
            return Err(format!("line {}: {name} is not in order", index + 1));
        }
        previous = name;
        let (x86_64, aarch64) = (number(x86_64, index)?, number(aarch64, index)?);
        by_number_x86_64.extend(x86_64.map(|number| (number, row)));
        by_number_aarch64.extend(aarch64.map(|number| (number, row)));
        writeln!(rust, "    Syscall {{ row: {row}, name: {name:?}, x86_64: {x86_64:?}, aarch64: {aarch64:?} }},")
            .map_err(|error| error.to_string())?;
        row += 1;
    }
    rust.push_str("];\n");
    for (name, mut rows) in
        [("BY_NUMBER_X86_64", by_number_x86_64), ("BY_NUMBER_AARCH64", by_number_aarch64)]
    {
        rows.sort_unstable();
        if rows.windows(2).any(|pair| pair[0].0 == pair[1].0) {
            return Err(format!("{name}: a number is given twice"));
        }
        writeln!(rust, "/// Number and row of the table, by number.\nstatic {name}: &[(u32, usize)] = &{rows:?};")
            .map_err(|error| error.to_string())?;
    }
    let out = env::var_os("OUT_DIR").ok_or("OUT_DIR is not set")?;
    fs::write(Path::new(&out).join("syscall_table.rs"), rust).map_err(|error| error.to_string())
}

fn number(column: &str, index: usize) -> Result<Option<u32>, String> {
    match column {
        "-" => Ok(None),
        digits => digits
            .parse()
            .map(Some)
            .map_err(|_| format!("line {}: {digits} is no number", index + 1)),
    }
}
