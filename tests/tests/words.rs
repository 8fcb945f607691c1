//! The house's language, held by numbers that only shrink: openings of doc comments, words in
//! public names, one public type for one name, and parameters that hide several in a tuple.
//!
//! Every failure names what to write instead. Words to use are in `docs/glossary.md`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use proc_macro2::{TokenStream, TokenTree};
use quote::ToTokens;
use syn::{FnArg, ImplItem, Item, Lit, Pat, Signature, TraitItem, Visibility};

/// Openings of doc comments that lean on the item above instead of saying what this one is.
const FRAGMENT_OPENINGS: &[&str] = &["What ", "Whether ", "Of ", "The same", "As "];

/// Maximum number of doc comments with such an opening.
const FRAGMENTS_MAX: usize = 0;

/// Words that public names do not use, with what the field says.
const BANNED_WORDS: &[(&str, &str)] = &[
    ("alike", "`identical` or `equal`"),
    ("believe", "`assume` or `extrapolate`"),
    ("beside", "`concurrent` or `next_to`"),
    ("book", "`table`"),
    ("crew", "`worker_group`"),
    ("desk", "`scheduler`"),
    ("ear", "`forwarder`"),
    ("errand", "`background_task`"),
    ("errands", "`background_tasks`"),
    ("far", "`slow_tier`"),
    ("goes", "`ControlFlow`"),
    ("heard", "`received`"),
    ("home", "`tier`"),
    ("homes", "`tiers`"),
    ("lagging", "`deferred`"),
    ("lags", "`deferred`"),
    ("lead", "`checkpoint`"),
    ("least", "`min`"),
    ("lies", "`is_stored`"),
    ("meant", "`into_config`"),
    ("most", "`max`"),
    ("news", "`event`"),
    ("nobody", "`none`"),
    ("priced", "`search` or `cost`"),
    ("pulse", "`watchdog`"),
    ("room", "`capacity`"),
    ("said", "`reported` or `specified`"),
    ("seat", "`allocation`"),
    ("seated", "`running`"),
    ("shelf", "`index`"),
    ("stillness", "`stall_detector`"),
    ("teller", "`detokenizer`"),
    ("tellers", "`detokenizer_pool`"),
    ("told", "`reported` or `sent`"),
    ("twice", "`doubled`"),
    ("whoever", "`caller`"),
];

/// Maximum number of public names with such a word. Only shrinks.
const BANNED_NAMES_MAX: usize = 0;

/// Words that messages do not use, with what they say instead.
const BANNED_IN_MESSAGES: &[(&str, &str)] = &[
    ("alike", "identical, equal, or the same"),
    ("beside", "in addition to, or next to"),
    ("crew", "workers"),
    ("desk", "scheduler"),
    ("errand", "background task"),
    ("errands", "background tasks"),
    ("nobody", "no process, or no user"),
    ("said", "specified, or reported"),
    ("shelf", "index"),
    ("teller", "detokenizer"),
    ("told", "reported, or specified"),
    ("whoever", "the process that, or the user who"),
];

/// Maximum number of messages with such a word. Only shrinks.
const BANNED_MESSAGES_MAX: usize = 0;

/// Maximum number of public type names that two crates define. Only shrinks.
const SHARED_TYPE_NAMES_MAX: usize = 0;

/// Maximum number of parameters that are tuples. Only shrinks.
const TUPLE_PARAMETERS_MAX: usize = 4;

/// Maximum number of modules that are both `x.rs` and a folder `x/`. Only shrinks.
const SPLIT_MODULES_MAX: usize = 0;

/// Product sources of one crate, tests left out.
struct Crate {
    name: String,
    files: Vec<PathBuf>,
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace is one up").to_path_buf()
}

fn find_crates(folder: &Path, found: &mut Vec<Crate>) {
    if folder.join("Cargo.toml").is_file() && folder.join("src").is_dir() {
        let mut files = Vec::new();
        find_sources(&folder.join("src"), &mut files);
        files.sort();
        let name = folder.strip_prefix(root()).expect("a crate of the workspace");
        found.push(Crate { name: name.to_string_lossy().into_owned(), files });
    }
    for entry in std::fs::read_dir(folder).expect("a folder of the project can be read") {
        let path = entry.expect("an entry can be read").path();
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned());
        let is_skipped = name.is_none_or(|name| name.starts_with('.') || name == "target");
        if path.is_dir() && !is_skipped {
            find_crates(&path, found);
        }
    }
}

fn find_sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).expect("sources can be read") {
        let path = entry.expect("an entry can be read").path();
        let name = path.file_stem().map(|name| name.to_string_lossy().into_owned());
        let is_test = name.is_some_and(|name| name == "tests" || name.ends_with("_tests"));
        if path.is_dir() && !is_test {
            find_sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") && !is_test {
            found.push(path);
        }
    }
}

fn crates() -> Vec<Crate> {
    let mut found = Vec::new();
    find_crates(&root(), &mut found);
    assert!(found.len() > 10, "only {} crates found: the rules would hold of nothing", found.len());
    found
}

fn relative(path: &Path) -> String {
    path.strip_prefix(root()).expect("below the root").to_string_lossy().into_owned()
}

/// A parsed source, its path below the root and its crate.
struct Source {
    krate: String,
    path: String,
    file: syn::File,
}

fn parsed() -> Vec<Source> {
    let sources = crates().into_iter().flat_map(|krate| {
        krate.files.into_iter().map(move |path| {
            let text = std::fs::read_to_string(&path).expect("Rust is UTF-8");
            let file = syn::parse_file(&text).unwrap_or_else(|error| panic!("{path:?}: {error}"));
            Source { krate: krate.name.clone(), path: relative(&path), file }
        })
    });
    sources.collect()
}

/// Fails if more was found than the maximum, or fewer, so that the maximum follows.
fn ratchet(found: &[String], max: usize, constant: &str, remedy: &str) {
    let count = found.len();
    assert!(count <= max, "{count}, at most {max}: {remedy}\n{}", found.join("\n"));
    assert!(count == max, "only {count} now; lower {constant} from {max} to {count}");
}

/// The public names of a file: kind, name.
fn public_names(items: &[Item], types: &mut BTreeSet<String>, names: &mut BTreeSet<String>) {
    let is_public = |visibility: &Visibility| matches!(visibility, Visibility::Public(_));
    for item in items {
        match item {
            Item::Struct(item) if is_public(&item.vis) => {
                types.insert(item.ident.to_string());
                let fields = item.fields.iter().filter(|field| is_public(&field.vis));
                names.extend(
                    fields.filter_map(|field| field.ident.as_ref()).map(ToString::to_string),
                );
            }
            Item::Enum(item) if is_public(&item.vis) => {
                types.insert(item.ident.to_string());
                names.extend(item.variants.iter().map(|variant| variant.ident.to_string()));
            }
            Item::Trait(item) if is_public(&item.vis) => {
                types.insert(item.ident.to_string());
                names.extend(item.items.iter().filter_map(|item| match item {
                    TraitItem::Fn(method) => Some(method.sig.ident.to_string()),
                    _ => None,
                }));
            }
            Item::Type(item) if is_public(&item.vis) => {
                types.insert(item.ident.to_string());
            }
            Item::Fn(item) if is_public(&item.vis) => {
                names.insert(item.sig.ident.to_string());
            }
            Item::Const(item) if is_public(&item.vis) => {
                names.insert(item.ident.to_string());
            }
            Item::Impl(item) => names.extend(item.items.iter().filter_map(|item| match item {
                ImplItem::Fn(method) if is_public(&method.vis) => {
                    Some(method.sig.ident.to_string())
                }
                _ => None,
            })),
            Item::Mod(item) => {
                if is_public(&item.vis) {
                    names.insert(item.ident.to_string());
                }
                let is_test = item.ident == "tests";
                if let Some((_, items)) = item.content.as_ref().filter(|_| !is_test) {
                    public_names(items, types, names);
                }
            }
            _ => {}
        }
    }
}

/// The words of a name in snake_case or CamelCase, in lower case.
fn words(name: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut was_lower = false;
    for character in name.chars() {
        if character == '_' || (character.is_uppercase() && was_lower) {
            words.push(String::new());
        }
        if character != '_' {
            words.last_mut().expect("never empty").extend(character.to_lowercase());
        }
        was_lower = character.is_lowercase();
    }
    words
}

#[test]
fn doc_comments_stand_alone() {
    let mut found = Vec::new();
    for path in crates().iter().flat_map(|krate| &krate.files) {
        let text = std::fs::read_to_string(path).expect("Rust is UTF-8");
        let mut was_doc = false;
        for (index, line) in text.lines().enumerate() {
            let doc = line.trim_start().strip_prefix("/// ");
            if let Some(doc) = doc.filter(|_| !was_doc)
                && FRAGMENT_OPENINGS.iter().any(|opening| doc.starts_with(opening))
            {
                found.push(format!("{}:{}: {doc}", relative(path), index + 1));
            }
            was_doc = line.trim_start().starts_with("///");
        }
    }
    let remedy = "types and fields: a noun phrase; functions: a verb (\"Returns true if ...\")";
    ratchet(&found, FRAGMENTS_MAX, "FRAGMENTS_MAX", remedy);
}

/// Parses all sources once, which takes most of the time of these rules.
#[test]
fn names_messages_and_parameters_follow_the_rules() {
    let sources = parsed();
    public_names_use_the_words_of_the_field(&sources);
    messages_use_the_words_of_the_field(&sources);
    a_public_type_has_its_name_for_itself(&sources);
    parameters_are_not_tuples(&sources);
}

fn public_names_use_the_words_of_the_field(sources: &[Source]) {
    let mut found = Vec::new();
    for Source { path, file, .. } in sources {
        let (mut types, mut names) = (BTreeSet::new(), BTreeSet::new());
        public_names(&file.items, &mut types, &mut names);
        for name in types.iter().chain(&names) {
            let words = words(name);
            let banned = BANNED_WORDS.iter().find(|(word, _)| words.iter().any(|own| own == word));
            if let Some((word, instead)) = banned {
                found.push(format!("{path}: `{name}`: not `{word}` but {instead}"));
            }
        }
    }
    ratchet(&found, BANNED_NAMES_MAX, "BANNED_NAMES_MAX", "public names use the field's words");
}

/// Adds the string literals of tokens, except for those of attributes, which comments are too.
fn string_literals(tokens: TokenStream, found: &mut Vec<String>) {
    let mut is_attribute = false;
    for token in tokens {
        match token {
            TokenTree::Group(group) if !is_attribute => string_literals(group.stream(), found),
            TokenTree::Literal(literal) => {
                if let Lit::Str(literal) = Lit::new(literal) {
                    found.push(literal.value());
                }
            }
            TokenTree::Punct(punct) if punct.as_char() == '#' => {
                is_attribute = true;
                continue;
            }
            _ => {}
        }
        is_attribute = false;
    }
}

/// Returns true for items that are compiled only for tests.
fn is_test(item: &Item) -> bool {
    let Item::Mod(module) = item else { return false };
    module.attrs.iter().any(|attribute| {
        attribute.path().is_ident("cfg") && attribute.to_token_stream().to_string().contains("test")
    })
}

fn messages_use_the_words_of_the_field(sources: &[Source]) {
    let mut found = Vec::new();
    for Source { path, file, .. } in sources.iter().filter(|source| source.path.contains("/src/")) {
        let mut literals = Vec::new();
        for item in file.items.iter().filter(|item| !is_test(item)) {
            string_literals(item.to_token_stream(), &mut literals);
        }
        // A message has a space; anything else is a name or a key.
        for literal in literals.iter().filter(|literal| literal.contains(' ')) {
            let words = literal.split(|next: char| !next.is_alphabetic()).map(str::to_lowercase);
            for word in words {
                if let Some((_, instead)) =
                    BANNED_IN_MESSAGES.iter().find(|(banned, _)| *banned == word)
                {
                    let shown: String = literal.chars().take(60).collect();
                    found.push(format!("{path}: \"{shown}\": not `{word}` but {instead}"));
                }
            }
        }
    }
    let remedy = "messages use the field's words";
    ratchet(&found, BANNED_MESSAGES_MAX, "BANNED_MESSAGES_MAX", remedy);
}

fn a_public_type_has_its_name_for_itself(sources: &[Source]) {
    let mut crates_by_type: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for Source { krate, file, .. } in sources {
        let (mut types, mut names) = (BTreeSet::new(), BTreeSet::new());
        public_names(&file.items, &mut types, &mut names);
        for name in types {
            crates_by_type.entry(name).or_default().insert(krate.clone());
        }
    }
    let shared = crates_by_type.iter().filter(|(_, crates)| crates.len() > 1);
    let found: Vec<String> = shared.map(|(name, crates)| format!("{name}: {crates:?}")).collect();
    let remedy = "a type's name carries its noun (`PlanRequest`, `ReadRequest`)";
    ratchet(&found, SHARED_TYPE_NAMES_MAX, "SHARED_TYPE_NAMES_MAX", remedy);
}

fn tuple_parameters(signature: &Signature) -> usize {
    let is_tuple = |argument: &&FnArg| match argument {
        FnArg::Typed(typed) => matches!(*typed.pat, Pat::Tuple(_)),
        FnArg::Receiver(_) => false,
    };
    signature.inputs.iter().filter(is_tuple).count()
}

fn functions_with_tuples(items: &[Item], path: &str, found: &mut Vec<String>) {
    let mut look = |signature: &Signature| {
        for _ in 0..tuple_parameters(signature) {
            found.push(format!("{path}: fn {}", signature.ident));
        }
    };
    for item in items {
        match item {
            Item::Fn(item) => look(&item.sig),
            Item::Impl(item) => item.items.iter().for_each(|item| {
                if let ImplItem::Fn(method) = item {
                    look(&method.sig);
                }
            }),
            Item::Trait(item) => item.items.iter().for_each(|item| {
                if let TraitItem::Fn(method) = item {
                    look(&method.sig);
                }
            }),
            _ => {}
        }
    }
}

fn parameters_are_not_tuples(sources: &[Source]) {
    let mut found = Vec::new();
    for Source { path, file, .. } in sources {
        functions_with_tuples(&file.items, path, &mut found);
    }
    let remedy = "make a struct of what belongs together";
    ratchet(&found, TUPLE_PARAMETERS_MAX, "TUPLE_PARAMETERS_MAX", remedy);
}

#[test]
fn a_module_is_a_file_or_a_folder() {
    let mut found = Vec::new();
    for path in crates().iter().flat_map(|krate| &krate.files) {
        if path.with_extension("").is_dir() {
            found.push(relative(path));
        }
    }
    ratchet(&found, SPLIT_MODULES_MAX, "SPLIT_MODULES_MAX", "move `x.rs` to `x/mod.rs`");
}
