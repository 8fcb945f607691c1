//! Detection of schemas that no finite value satisfies: references that only lead back to
//! themselves, and objects that require an object of their own kind.

use std::collections::{HashSet, VecDeque};

use serde_json::Value;

use crate::error::GrammarError;
use crate::graph::{Graph, InPlaceKeyword, Node, ValuePart, count, required};

/// Refuses references that lead back to themselves without a value in between.
///
/// # Errors
/// Returns an error that names one of them.
pub(crate) fn check_cycles(graph: &Graph<'_>) -> Result<(), GrammarError> {
    #[derive(Clone, Copy, PartialEq)]
    enum State {
        Unseen,
        Open,
        Done,
    }
    let mut states = vec![State::Unseen; graph.nodes.len()];
    for start in 0..graph.nodes.len() {
        if states[start] != State::Unseen {
            continue;
        }
        // Nodes of the current path, each with the number of its edges that were followed.
        let mut path = vec![(start, 0)];
        states[start] = State::Open;
        while let Some((index, followed)) = path.last_mut() {
            let Some((_, next)) = graph.nodes[*index].in_place.get(*followed) else {
                states[*index] = State::Done;
                path.pop();
                continue;
            };
            *followed += 1;
            match states[*next] {
                State::Open => {
                    return Err(GrammarError(format!(
                        "the schema at `#{}` refers back to itself without a property or an item \
                         between, so no value can be validated against it",
                        graph.nodes[*next].pointer
                    )));
                }
                State::Unseen => {
                    states[*next] = State::Open;
                    path.push((*next, 0));
                }
                State::Done => {}
            }
        }
    }
    Ok(())
}

/// Returns the JSON pointers to the schemas that no finite value satisfies, because each requires
/// another of them.
///
/// # Errors
/// Returns an error if the root is one of them.
pub(crate) fn endless_places(graph: &Graph<'_>) -> Result<Vec<String>, GrammarError> {
    let mut ends = vec![false; graph.nodes.len()];
    // Schemas that use a schema: once it is known to be finite, they may be finite, too.
    let mut users: Vec<Vec<usize>> = vec![Vec::new(); graph.nodes.len()];
    for (index, node) in graph.nodes.iter().enumerate() {
        let used = node.in_place.iter().map(|(_, used)| *used);
        used.chain(node.parts.iter().map(|(_, used)| *used)).for_each(|used| {
            users[used].push(index);
        });
    }
    // Each node is queued at most once at a time, however many of its parts become finite:
    // otherwise wide objects would take quadratic time.
    let mut rest: VecDeque<usize> = (0..graph.nodes.len()).collect();
    let mut waits = vec![true; graph.nodes.len()];
    while let Some(index) = rest.pop_front() {
        waits[index] = false;
        if !ends[index] && can_end(&graph.nodes[index], &ends) {
            ends[index] = true;
            for user in &users[index] {
                if !std::mem::replace(&mut waits[*user], true) {
                    rest.push_back(*user);
                }
            }
        }
    }
    if !ends[0] {
        return Err(GrammarError(
            "the schema requires values within values without end, so no answer could be complete"
                .to_owned(),
        ));
    }
    let endless = graph.nodes.iter().zip(ends).filter(|(_, ends)| !ends);
    Ok(endless.map(|(node, _)| node.pointer.clone()).collect())
}

/// Returns true if a finite value satisfies a schema, as far as is known of the schemas that it
/// uses.
fn can_end(node: &Node<'_>, ends: &[bool]) -> bool {
    // The parser decides if a schema of `false` is allowed at its position.
    let Value::Object(schema) = node.schema else { return true };
    if !node.in_place.iter().all(|(how, used)| *how != InPlaceKeyword::All || ends[*used]) {
        return false;
    }
    let of = |keyword: &'static str| {
        let mut all =
            node.in_place.iter().filter(move |(how, _)| *how == InPlaceKeyword::Any(keyword));
        schema.get(keyword).is_none() || all.any(|(_, used)| ends[*used])
    };
    if !of("anyOf") || !of("oneOf") {
        return false;
    }
    if schema.contains_key("const") || schema.contains_key("enum") {
        return true;
    }
    let may_be = |kind: &str| match schema.get("type") {
        None => true,
        Some(Value::Array(kinds)) => kinds.iter().any(|one| one == kind),
        Some(one) => one == kind,
    };
    let of_parts = [may_be("object"), may_be("array")];
    let others = ["null", "boolean", "number", "integer", "string"];
    others.into_iter().any(may_be)
        || of_parts == [false; 2]
        || (of_parts[0] && object_ends(node, ends))
        || (of_parts[1] && array_ends(node, ends))
}

fn object_ends(node: &Node<'_>, ends: &[bool]) -> bool {
    let Value::Object(schema) = node.schema else { return true };
    let required: HashSet<&str> = required(schema).collect();
    node.parts.iter().all(|(part, used)| match part {
        ValuePart::Property(name) => ends[*used] || !required.contains(name),
        _ => true,
    })
}

fn array_ends(node: &Node<'_>, ends: &[bool]) -> bool {
    let Value::Object(schema) = node.schema else { return true };
    let least = count(schema, "minItems").unwrap_or(0);
    let prefix = node.parts.iter().filter(|(part, _)| matches!(part, ValuePart::Item(_))).count();
    let items = schema.get("items").filter(|items| !items.is_array());
    node.parts.iter().all(|(part, used)| match part {
        ValuePart::Item(index) => *index >= least || ends[*used],
        // Among the keywords for items only `items` applies to all of them.
        ValuePart::Items => least <= prefix || items.is_none() || ends[*used],
        ValuePart::Property(_) | ValuePart::Properties => true,
    })
}
