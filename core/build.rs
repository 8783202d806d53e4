//! Says whether the target has the kernel this is for (`cfg(supported)`), and turns the tables that
//! Python shares (system calls, rights of Landlock, parts of git) into static arrays. A table that is not sorted,
//! not unique or not numeric stops the build.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::Path;
use std::{env, fs, process};

const SYSCALLS: &str = "../src/paddock/policy/syscalls.tsv";
const LANDLOCK: &str = "../src/paddock/policy/landlock.tsv";
const GIT: &str = "../src/paddock/policy/git.tsv";

/// The roles of parts of git that have harmless content, and their variants of `Role`.
const GIT_ROLES: [(&str, &str); 11] = [
    ("apply-options", "ApplyOptions"),
    ("commondir", "CommonDir"),
    ("config", "Config"),
    ("gitdir", "GitDir"),
    ("hook", "Hook"),
    ("hooks", "Hooks"),
    ("index", "Index"),
    ("number", "Number"),
    ("packed-refs", "PackedRefs"),
    ("ref-list", "RefList"),
    ("shared-index", "SharedIndex"),
];

fn main() {
    println!("cargo::rerun-if-changed={SYSCALLS}");
    println!("cargo::rerun-if-changed={LANDLOCK}");
    println!("cargo::rerun-if-changed={GIT}");
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=PADDOCK_DEFAULT_SHELL_DIR");
    println!("cargo::rustc-check-cfg=cfg(supported)");
    if supported() {
        println!("cargo::rustc-cfg=supported");
    }
    for (table, generated) in
        [(SYSCALLS, generate_syscalls()), (LANDLOCK, generate_landlock()), (GIT, generate_git())]
    {
        if let Err(message) = generated {
            println!("cargo::error={table}: {message}");
            process::exit(1);
        }
    }
}

fn supported() -> bool {
    let target = |part: &str| env::var(format!("CARGO_CFG_TARGET_{part}")).unwrap_or_default();
    let forced = env::var_os("CARGO_FEATURE_FORCE_UNSUPPORTED").is_some();
    !forced && target("OS") == "linux" && matches!(target("ARCH").as_str(), "x86_64" | "aarch64")
}

fn generate_syscalls() -> Result<(), String> {
    let table = fs::read_to_string(SYSCALLS).map_err(|error| error.to_string())?;
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
    write_generated("syscall_table.rs", &rust)
}

/// Name, constant of the crate `landlock` and first ABI of each right and scope. `make_dir` is
/// `AccessFs::MakeDir`.
fn generate_landlock() -> Result<(), String> {
    let table = fs::read_to_string(LANDLOCK).map_err(|error| error.to_string())?;
    let (mut rights, mut scopes) = (String::new(), String::new());
    let mut previous = ("", "");
    for (index, line) in table.lines().enumerate().filter(|(_, line)| !line.starts_with('#')) {
        let columns: Vec<&str> = line.split('\t').collect();
        let [kind, name, abi, _access, _without_it] = columns[..] else {
            return Err(format!("line {}: expected five columns", index + 1));
        };
        if (kind, name) <= previous {
            return Err(format!("line {}: {name} is not in order", index + 1));
        }
        previous = (kind, name);
        let abi: i32 =
            abi.parse().map_err(|_| format!("line {}: {abi} is no number", index + 1))?;
        let (list, flags) = match kind {
            "right" => (&mut rights, "AccessFs"),
            "scope" => (&mut scopes, "Scope"),
            _ => return Err(format!("line {}: unknown kind {kind}", index + 1)),
        };
        writeln!(list, "    ({name:?}, {flags}::{}, {abi}),", camel_case(name))
            .map_err(|error| error.to_string())?;
    }
    let rust = format!(
        "/// Name in a plan, flag, first ABI.\n\
         const RIGHTS: &[(&str, AccessFs, i32)] = &[\n{rights}];\n\
         const SCOPES: &[(&str, Scope, i32)] = &[\n{scopes}];\n"
    );
    write_generated("landlock_table.rs", &rust)
}

fn generate_git() -> Result<(), String> {
    let table = fs::read_to_string(GIT).map_err(|error| error.to_string())?;
    let [mut parts, mut written, mut layouts, mut branches, mut keys] =
        [const { String::new() }; 5];
    let (mut checked, mut previous_key) = (BTreeSet::new(), "");
    for (index, line) in table.lines().enumerate().filter(|(_, line)| !line.starts_with('#')) {
        let columns: Vec<&str> = line.split('\t').collect();
        let [kind, name, role, held] = columns[..] else {
            return Err(format!("line {}: expected four columns", index + 1));
        };
        match kind {
            "part" => {
                let role = GIT_ROLES.iter().find(|(harmless, _)| *harmless == role);
                let role =
                    role.map_or("None".to_owned(), |(_, name)| format!("Some(Role::{name})"));
                writeln!(parts, "    GitPart {{ path: {name:?}, role: {role}, held: {held:?} }},")
                    .map_err(|error| error.to_string())?;
                if held == "checked" {
                    checked.extend(name.rsplit('/').next());
                }
            }
            "written" => written.push_str(&format!("{name:?}, ")),
            "layout" => layouts.push_str(&format!("{name:?}, ")),
            "branch" => branches.push_str(&format!("{name:?}, ")),
            "key" if name <= previous_key => {
                return Err(format!("line {}: {name} is not in order", index + 1));
            }
            "key" => {
                previous_key = name;
                let kind = camel_case(role);
                keys.push_str(&format!("    ({name:?}, ConfigKeyKind::{kind}),\n"));
            }
            _ => return Err(format!("line {}: unknown kind {kind}", index + 1)),
        }
    }
    let checked: String = checked.iter().map(|name| format!("c{name:?}, ")).collect();
    let rust = format!(
        "pub static PARTS: &[GitPart] = &[\n{parts}];\n\
         /// The last names of the parts that the last scan checks.\n\
         pub static CHECKED: &[&CStr] = &[{checked}];\n\
         /// Other names that git and its tools write.\n\
         static WRITTEN: &[&str] = &[{written}];\n\
         /// Where a git directory contains other ones.\n\
         static LAYOUTS: &[&str] = &[{layouts}];\n\
         /// Parts that end with the name of a branch.\n\
         pub static BRANCHES: &[&str] = &[{branches}];\n\
         /// Sorted by name.\n\
         static KEYS: &[(&str, ConfigKeyKind)] = &[\n{keys}];\n"
    );
    write_generated("git_table.rs", &rust)
}

fn camel_case(name: &str) -> String {
    name.split('_').map(|word| word[..1].to_uppercase() + &word[1..]).collect()
}

fn write_generated(name: &str, rust: &str) -> Result<(), String> {
    let out = env::var_os("OUT_DIR").ok_or("OUT_DIR is not set")?;
    fs::write(Path::new(&out).join(name), rust).map_err(|error| error.to_string())
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
