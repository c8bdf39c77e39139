//! Rules of the source tree: the direction of imports, and the language of documentation.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// The rooms of `src`, from the ground up: each imports only rooms listed before it.
const FLOORS: &[&str] = &[
    "base",
    "protocol",
    "metrics",
    "store",
    "config",
    "identity",
    "tls",
    "child",
    "server",
    "balancer",
    "eviction",
    "log",
    "otel",
    "event_log",
    "channel",
    "upstream",
    "delivery",
    "cluster",
    "dialect",
    "lifecycle",
    "admin",
    "ingress",
    "sidecar",
    "connect",
    "demo",
    "check",
    "cli",
    "main",
];

/// The rooms that are crates of their own. The compiler holds their direction; `crate` in them is
/// the room.
const CRATES: &[&str] =
    &["base", "protocol", "metrics", "store", "config", "identity", "tls", "child", "server", "balancer"];

/// Words with which no documentation of an item begins: they put a clause where a noun or a verb
/// belongs.
const OPENINGS: &[&str] = &[
    "what", "whether", "how", "where", "when", "it", "its", "the same", "who", "whose", "whom", "so", "which", "those",
];

/// Words that hide the subject of a sentence.
const AVOIDED: &[&str] =
    &["whoever", "whomever", "nobody", "somebody", "anybody", "everybody", "whatever", "whichever", "wherever"];

/// The longest sentence of documentation, in words.
const LONGEST_SENTENCE: usize = 40;

/// The longest line of a comment, in characters. Examples, tables and links may be longer.
const LONGEST_COMMENT_LINE: usize = 100;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Returns every Rust file below `folder`, by its path from the root.
fn sources(folder: &str) -> BTreeMap<PathBuf, String> {
    let mut found = BTreeMap::new();
    let mut folders = vec![root().join(folder)];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("a folder that can be read") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                if !path.ends_with("target") && !path.ends_with("node_modules") {
                    folders.push(path);
                }
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = fs::read_to_string(&path).expect("text");
                let name = path.strip_prefix(root()).expect("below the root").to_owned();
                found.insert(name, text);
            }
        }
    }
    found
}

/// Returns the code of a file of `src` without its comments and its unit tests, which may import
/// anything.
fn production(text: &str) -> String {
    let code = text.lines().filter(|line| !line.trim_start().starts_with("//"));
    let mut kept = String::new();
    let mut lines = code.peekable();
    while let Some(line) = lines.next() {
        let is_test = line.trim() == "#[cfg(test)]";
        if is_test && lines.peek().is_some_and(|next| next.starts_with("mod tests {")) {
            break;
        }
        kept.push_str(line);
        kept.push('\n');
    }
    kept
}

fn is_test(path: &Path) -> bool {
    path.components().any(|part| part.as_os_str() == "tests") || path.ends_with("tests.rs")
}

/// Returns the path from `crate` of each name that `code`, the code of `module`, takes from another
/// module.
fn imports(module: &[String], code: &str) -> BTreeSet<Vec<String>> {
    let mut found = BTreeSet::new();
    let own = module.iter().take(1).filter(|room| CRATES.contains(&room.as_str()));
    for rest in code.split("crate::").skip(1) {
        collect(rest, &mut own.clone().cloned().collect(), &mut found);
    }
    for (at, _) in code.match_indices("super::") {
        // Of `super::super::` the last one counts, with those before it.
        let (before, rest) = (&code[..at], &code[at + "super::".len()..]);
        if !rest.starts_with("super::") {
            let levels = 1 + before.len().saturating_sub(before.trim_end_matches("super::").len()) / "super::".len();
            let mut prefix = module[..module.len().saturating_sub(levels)].to_vec();
            collect(rest, &mut prefix, &mut found);
        }
    }
    found
}

/// Returns the path of each name that `code`, the code of a `mod.rs`, takes from a file beside it.
/// Names that it hands on are not among them.
fn child_imports(module: &[String], code: &str) -> BTreeSet<Vec<String>> {
    let mut found = BTreeSet::new();
    let folder = root().join("src").join(PathBuf::from_iter(module));
    for line in code.split('\n').enumerate().filter(|(_, line)| line.starts_with("use ")).map(|(number, _)| number) {
        let text = code.split('\n').skip(line).collect::<Vec<_>>().join("\n");
        let text = text.trim_start_matches("use ").trim_start_matches("self::");
        let child = text.split("::").next().unwrap_or_default();
        if folder.join(format!("{child}.rs")).is_file() || folder.join(child).is_dir() {
            collect(text, &mut module.to_vec(), &mut found);
        }
    }
    found
}

/// The names that the modules with children hand on, each with the path it comes from.
fn exports(files: &BTreeMap<PathBuf, String>) -> BTreeMap<Vec<String>, Vec<String>> {
    let mut found = BTreeMap::new();
    for (path, text) in files.iter().filter(|(path, _)| path.ends_with("mod.rs") || path.ends_with("lib.rs")) {
        let folder = module(path);
        for rest in text.split("use ").skip(1) {
            let mut names = BTreeSet::new();
            collect(rest.trim_start_matches("self::"), &mut Vec::new(), &mut names);
            for name in names.into_iter().filter(|name| name.len() > 1) {
                let is_child = |suffix: &str| {
                    root().join("src").join(PathBuf::from_iter(&folder)).join(format!("{}{suffix}", name[0])).exists()
                };
                if is_child(".rs") || is_child("/mod.rs") {
                    let handed_on = folder.iter().chain(name.last()).cloned().collect();
                    found.insert(handed_on, folder.iter().chain(&name).cloned().collect());
                }
            }
        }
    }
    found
}

/// Adds the paths at the beginning of `text` to `found`, each after `prefix`; returns the text
/// after them.
fn collect<'a>(text: &'a str, prefix: &mut Vec<String>, found: &mut BTreeSet<Vec<String>>) -> &'a str {
    let text = text.trim_start();
    if let Some(mut rest) = text.strip_prefix('{') {
        loop {
            rest = collect(rest, prefix, found).trim_start();
            match rest.strip_prefix(',') {
                Some(next) if !next.trim_start().starts_with('}') => rest = next,
                Some(next) => return next.trim_start().trim_start_matches('}'),
                None => return rest.strip_prefix('}').unwrap_or(rest),
            }
        }
    }
    let end = text.find(|letter: char| !letter.is_alphanumeric() && letter != '_').unwrap_or(text.len());
    let (name, rest) = text.split_at(end);
    prefix.push(name.to_owned());
    let rest = match rest.strip_prefix("::") {
        Some(inner) => collect(inner, prefix, found),
        None => {
            found.insert(prefix.clone());
            rest
        }
    };
    prefix.pop();
    // A renamed import ends behind its name.
    let renamed =
        rest.strip_prefix(" as ").map(|rest| rest.trim_start_matches(|c: char| c.is_alphanumeric() || c == '_'));
    renamed.unwrap_or(rest)
}

/// Returns the room of a file of `src`: its folder, or its name if it stands alone.
fn room(path: &Path) -> String {
    let first = path.components().nth(1).expect("a part below src").as_os_str().to_str().expect("text");
    first.trim_end_matches(".rs").to_owned()
}

#[test]
fn rooms_import_only_rooms_below_them() {
    let floor = |room: &str| FLOORS.iter().position(|name| *name == room);
    let mut faults = BTreeSet::new();
    let mut rooms = BTreeSet::new();
    let mut checked = 0;
    for (path, text) in sources("src") {
        let from = room(&path);
        if is_test(&path) || from == "lib" {
            continue;
        }
        rooms.insert(from.clone());
        for import in imports(&module(&path), &production(&text)) {
            checked += usize::from(floor(&import[0]).is_some());
            let is_upwards = floor(&import[0]).is_some_and(|to| floor(&from).is_some_and(|from| to > from));
            if is_upwards {
                faults.insert(format!("{} imports {}", path.display(), import.join("::")));
            }
        }
    }
    assert!(checked > 1_000, "imports are not found: {checked}");
    let listed: BTreeSet<String> = FLOORS.iter().map(|name| (*name).to_owned()).collect();
    faults.extend(rooms.difference(&listed).map(|room| format!("{room} is not listed in FLOORS")));
    faults.extend(listed.difference(&rooms).map(|room| format!("{room} is listed in FLOORS and not in src")));
    assert!(faults.is_empty(), "{}", Vec::from_iter(faults).join("\n"));
}

#[test]
fn siblings_import_each_other_in_one_direction() {
    let files = sources("src");
    let exports = exports(&files);
    let own = "mod.rs".to_owned();
    // By folder: which of its files and folders imports which other one, and a file in which it
    // does.
    let mut arrows: BTreeMap<Vec<String>, BTreeMap<String, BTreeMap<String, String>>> = BTreeMap::new();
    for (path, text) in files.iter().filter(|(path, _)| !is_test(path)) {
        let module = module(path);
        let code = production(text);
        let from_files = if path.ends_with("mod.rs") { child_imports(&module, &code) } else { BTreeSet::new() };
        for import in imports(&module, &code).into_iter().chain(from_files) {
            let mut target = import;
            // A name may be handed on by a folder within a folder.
            for _ in 0..3 {
                if let Some(origin) = (2..=target.len()).rev().find_map(|length| exports.get(&target[..length])) {
                    target.clone_from(origin);
                }
            }
            let shared = module.iter().zip(&target).take_while(|(own, other)| own == other).count();
            let Some(to) = target.get(shared) else { continue };
            let place = root().join("src").join(PathBuf::from_iter(&target[..=shared]));
            let is_sibling = place.is_dir() || place.with_extension("rs").is_file();
            // The items of the folder itself are those of its `mod.rs`, which may use its files or
            // be used by them. What it hands on is the file's that it comes from.
            let to = if is_sibling { to } else { &own };
            let from = module.get(shared).unwrap_or(&own);
            if shared > 0 && from != to {
                let folder = arrows.entry(target[..shared].to_vec()).or_default();
                let name = format!("{} -> {}", path.display(), target.join("::"));
                folder.entry(from.clone()).or_default().insert(to.clone(), name);
            }
        }
    }
    let mut circles = BTreeMap::new();
    for (folder, arrows) in &arrows {
        let reach = |start: &String| {
            let mut reached = BTreeSet::new();
            let mut next: Vec<&String> = arrows.get(start).into_iter().flat_map(BTreeMap::keys).collect();
            while let Some(place) = next.pop() {
                if reached.insert(place) {
                    next.extend(arrows.get(place).into_iter().flat_map(BTreeMap::keys));
                }
            }
            reached
        };
        for (from, targets) in arrows {
            for (to, name) in targets.iter().filter(|(to, _)| reach(to).contains(from)) {
                let folder: &mut Vec<_> = circles.entry(folder.join("::")).or_default();
                folder.push(format!("{from} -> {to} ({name})"));
            }
        }
    }
    assert!(arrows.len() > 10, "imports are not found: {arrows:?}");
    assert!(circles.is_empty(), "imports that make circles: {circles:#?}");
}

/// Returns the module path of a file of `src`.
fn module(path: &Path) -> Vec<String> {
    let parts =
        path.with_extension("").iter().skip(1).map(|part| part.to_str().expect("text").to_owned()).collect::<Vec<_>>();
    match parts.split_last() {
        Some((last, folders)) if last == "mod" || last == "lib" => folders.to_vec(),
        _ => parts,
    }
}

/// A block of consecutive comment lines of one kind.
struct Comment {
    line: usize,
    is_doc: bool,
    lines: Vec<String>,
}

fn comments(text: &str) -> Vec<Comment> {
    let mut found: Vec<Comment> = Vec::new();
    let mut last: Option<&str> = None;
    for (number, line) in text.lines().enumerate() {
        let line = line.trim_start();
        let kind = ["///", "//!", "//"].into_iter().find(|kind| line.starts_with(kind));
        if let Some(kind) = kind {
            let content = line[kind.len()..].strip_prefix(' ').unwrap_or(&line[kind.len()..]).to_owned();
            match found.last_mut() {
                Some(comment) if last == Some(kind) => comment.lines.push(content),
                _ => found.push(Comment { line: number + 1, is_doc: kind != "//", lines: vec![content] }),
            }
        }
        last = kind;
    }
    found
}

/// Returns the paragraphs of a comment, without its examples and with each item of a list for
/// itself.
fn paragraphs(comment: &Comment) -> Vec<String> {
    let mut found = vec![String::new()];
    let mut is_example = false;
    for line in &comment.lines {
        if line.trim_start().starts_with("```") {
            is_example = !is_example;
        } else if !is_example {
            let begins =
                line.trim().is_empty() || line.trim_start().starts_with(['-', '*', '|', '#', '1', '2', '3', '4', '5']);
            if begins {
                found.push(String::new());
            }
            let paragraph = found.last_mut().expect("one at least");
            paragraph.push_str(line);
            paragraph.push(' ');
        }
    }
    found
}

fn longest_sentence(paragraph: &str) -> usize {
    let words = |sentence: &str| sentence.split_whitespace().count();
    paragraph
        .split_inclusive([' '])
        .fold((0, String::new()), |(longest, mut sentence), word| {
            sentence.push_str(word);
            if word.trim_end().ends_with(['.', ':', ';', '?', '!']) {
                (longest.max(words(&sentence)), String::new())
            } else {
                (longest.max(words(&sentence)), sentence)
            }
        })
        .0
}

#[test]
fn lines_of_comments_are_short() {
    let mut faults = Vec::new();
    let mut checked = 0;
    for (path, text) in ["src", "tests", "bench", "fuzz"].into_iter().flat_map(sources) {
        let mut is_example = false;
        for (number, line) in text.lines().enumerate() {
            let Some(comment) = line.trim_start().strip_prefix("//") else {
                is_example = false;
                continue;
            };
            let comment = comment.trim_start_matches(['/', '!', ' ']);
            checked += 1;
            is_example ^= comment.starts_with("```");
            let may_be_long =
                is_example || comment.starts_with('|') || comment.contains("](http") || comment.contains("]: http");
            if !may_be_long && line.chars().count() > LONGEST_COMMENT_LINE {
                faults.push(format!("{}:{}", path.display(), number + 1));
            }
        }
    }
    assert!(checked > 10_000, "comments are not found: {checked}");
    assert!(faults.is_empty(), "{} lines are too long:\n{}", faults.len(), faults.join("\n"));
}

#[test]
fn documentation_names_its_subject_first() {
    let mut faults = Vec::new();
    let mut docs = 0;
    for folder in ["src", "tests", "bench", "fuzz"] {
        for (path, text) in sources(folder) {
            // This file lists them.
            if path.ends_with("source.rs") {
                continue;
            }
            for (number, line) in text.lines().enumerate() {
                let mut words = line.split(|c: char| !c.is_alphanumeric());
                if let Some(word) = words.find(|word| AVOIDED.contains(&&*word.to_lowercase())) {
                    faults.push(format!("{}:{}: avoid \"{word}\"", path.display(), number + 1));
                }
            }
            for comment in comments(&text) {
                let whole = comment.lines.join(" ").to_lowercase();
                let place = format!("{}:{}", path.display(), comment.line);
                if !comment.is_doc {
                    continue;
                }
                docs += 1;
                let opening = whole.trim_start_matches(|c: char| !c.is_alphanumeric());
                let begins = |word: &&&str| {
                    opening.strip_prefix(**word).is_some_and(|rest| !rest.starts_with(|c: char| c.is_alphanumeric()))
                };
                if let Some(word) = OPENINGS.iter().find(begins) {
                    faults.push(format!("{place}: begins with \"{word}\""));
                }
                let longest = paragraphs(&comment).iter().map(|paragraph| longest_sentence(paragraph)).max();
                if let Some(words) = longest.filter(|words| *words > LONGEST_SENTENCE) {
                    faults.push(format!("{place}: a sentence of {words} words"));
                }
            }
        }
    }
    assert!(docs > 1_000, "documentation is not found: {docs}");
    assert!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults.join("\n"));
}
