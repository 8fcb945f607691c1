//! The files of a crate import one way: no two of them need each other, directly or through others.
//!
//! A `lib.rs` or `main.rs` is a crate's face and left out, and so are a folder's `pub use`, tests,
//! and names that are written out where they are used.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use syn::{Item, UseTree, Visibility};

/// A file as the path of its module.
type Module = Vec<String>;

/// The folders of all crates below `folder`.
fn crates(folder: &Path, found: &mut Vec<PathBuf>) {
    if folder.join("Cargo.toml").is_file() && folder.join("src").is_dir() {
        found.push(folder.to_path_buf());
    }
    for entry in std::fs::read_dir(folder).expect("a folder of the project can be read") {
        let path = entry.expect("an entry can be read").path();
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned());
        let skipped = name.is_none_or(|name| name.starts_with('.') || name == "target");
        if path.is_dir() && !skipped {
            crates(&path, found);
        }
    }
}

fn rust_files(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).expect("sources can be read") {
        let path = entry.expect("an entry can be read").path();
        if path.is_dir() {
            rust_files(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

/// The module of a file below `src`; `None` for faces and tests.
fn module(src: &Path, file: &Path) -> Option<Module> {
    let path = file.strip_prefix(src).ok()?.with_extension("");
    let mut names: Module =
        path.components().map(|name| name.as_os_str().to_string_lossy().into_owned()).collect();
    let is_face = names.len() == 1 && (names[0] == "lib" || names[0] == "main");
    if is_face || names.iter().any(|name| name == "tests") {
        return None;
    }
    names.pop_if(|name| name == "mod");
    Some(names)
}

/// Every path that a `use` names.
fn paths(tree: &UseTree, prefix: &[String], found: &mut Vec<Module>) {
    let with = |name: String| [prefix, &[name]].concat();
    match tree {
        UseTree::Path(path) => paths(&path.tree, &with(path.ident.to_string()), found),
        UseTree::Name(name) => found.push(with(name.ident.to_string())),
        UseTree::Rename(rename) => found.push(with(rename.ident.to_string())),
        UseTree::Glob(_) => found.push(prefix.to_vec()),
        UseTree::Group(group) => group.items.iter().for_each(|tree| paths(tree, prefix, found)),
    }
}

/// The file that defines what `path`, written in `from`, names, if it is one of `modules`.
fn file_of(path: &[String], from: &Module, modules: &BTreeSet<Module>) -> Option<Module> {
    let mut at = from.clone();
    let mut names = path.iter();
    let first = names.next()?;
    match first.as_str() {
        "crate" => at.clear(),
        "self" => {}
        "super" => drop(at.pop()),
        name => {
            at.push(name.to_owned());
            if !modules.contains(&at) {
                return None;
            }
        }
    }
    for name in names {
        if name == "super" {
            at.pop();
            continue;
        }
        at.push(name.clone());
        if !modules.contains(&at) {
            at.pop();
            break;
        }
    }
    modules.contains(&at).then_some(at)
}

/// The files that each file of a crate imports from.
fn imports(src: &Path) -> BTreeMap<Module, BTreeSet<Module>> {
    let mut files = Vec::new();
    rust_files(src, &mut files);
    let files: Vec<(Module, PathBuf)> =
        files.into_iter().filter_map(|file| Some((module(src, &file)?, file))).collect();
    let modules: BTreeSet<Module> = files.iter().map(|(module, _)| module.clone()).collect();
    let of_file = |(module, file): (Module, PathBuf)| {
        let text = std::fs::read_to_string(&file).expect("Rust is UTF-8");
        let parsed = syn::parse_file(&text).unwrap_or_else(|error| panic!("{file:?}: {error}"));
        let mut named = Vec::new();
        for item in &parsed.items {
            if let Item::Use(item) = item
                && matches!(item.vis, Visibility::Inherited)
            {
                paths(&item.tree, &[], &mut named);
            }
        }
        let found = named.iter().filter_map(|path| file_of(path, &module, &modules));
        let found = found.filter(|other| *other != module).collect();
        (module, found)
    };
    files.into_iter().map(of_file).collect()
}

/// The files that lie on circles, or between two.
fn circles(mut imports: BTreeMap<Module, BTreeSet<Module>>) -> BTreeMap<Module, BTreeSet<Module>> {
    loop {
        let before = imports.len();
        let imported: BTreeSet<Module> = imports.values().flatten().cloned().collect();
        imports.retain(|file, others| !others.is_empty() && imported.contains(file));
        let left: BTreeSet<Module> = imports.keys().cloned().collect();
        imports.values_mut().for_each(|others| others.retain(|other| left.contains(other)));
        if imports.len() == before {
            return imports;
        }
    }
}

#[test]
fn files_import_one_way() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace is one up");
    let mut folders = Vec::new();
    crates(root, &mut folders);
    assert!(folders.len() >= 10, "only {folders:?} found: the rule would hold of nothing");
    let mut wrong = String::new();
    let mut edges = 0;
    for folder in folders {
        let name = folder.strip_prefix(root).expect("found below the root").display();
        let imports = imports(&folder.join("src"));
        edges += imports.values().map(BTreeSet::len).sum::<usize>();
        for (file, others) in circles(imports) {
            for other in others {
                let _ = writeln!(wrong, "{name}: {} -> {}", file.join("::"), other.join("::"));
            }
        }
    }
    assert!(edges > 300, "only {edges} imports found: the rule would hold of nothing");
    assert!(wrong.is_empty(), "files that import each other:\n{wrong}");
}

#[test]
fn a_circle_is_found() {
    let file = |name: &str| vec![name.to_owned()];
    let imports = |edges: &[(&str, &[&str])]| {
        let of =
            |(from, to): &(&str, &[&str])| (file(from), to.iter().map(|to| file(to)).collect());
        edges.iter().map(of).collect::<BTreeMap<_, BTreeSet<_>>>()
    };
    let straight = imports(&[("a", &["b", "c"]), ("b", &["c"]), ("c", &[])]);
    assert!(circles(straight).is_empty());
    let circle = imports(&[("a", &["b"]), ("b", &["c"]), ("c", &["b"]), ("d", &["a"])]);
    assert_eq!(circles(circle).into_keys().collect::<Vec<_>>(), [file("b"), file("c")]);
}
