//! Builds an expression from tokens.
//!
//! In:     tokens.
//! Out:    an expression with its tree, checked: what RocketMQ refuses is refused.
//! Always: neither parsing nor the tree is deeper than `DEPTH_MAX`.

use super::token::{Keyword, Token, tokens};
use super::value::{Value, compare};
use super::{DEPTH_MAX, Expression, Fault, Literal, Node, Order, Search};
use crate::base::units::to_u64;

type Parsed<T> = Result<T, Fault>;

/// A part of the tree and how deep it is.
struct Part {
    node: Node,
    depth: usize,
    /// Where it begins in the text.
    at: usize,
}

pub(super) fn parse(text: &str) -> Parsed<Expression> {
    let tokens = tokens(text)?;
    let name = |(token, _): &_| if let Token::Name(name) = token { Some(*name) } else { None };
    let mut names: Vec<&str> = tokens.iter().filter_map(name).collect();
    let uses = to_u64(names.len()).max(1);
    names.sort_unstable();
    names.dedup();
    let mut parser = Parser { tokens: &tokens, names: &names, depth: 0 };
    let part = parser.either()?;
    let root = boolean(part)?;
    match parser.token() {
        Token::End => {
            let names = names.into_iter().map(Box::from).collect();
            Ok(Expression { text: text.into(), names, uses, root: root.node })
        }
        _ => Err(parser.fault("the expression has ended, and more follows")),
    }
}

struct Parser<'t> {
    /// The tokens that are left.
    tokens: &'t [(Token<'t>, usize)],
    /// The names of all of them, sorted.
    names: &'t [&'t str],
    /// How many parentheses and operators with one operand are open.
    depth: usize,
}

impl<'t> Parser<'t> {
    fn token(&self) -> Token<'t> {
        self.tokens.first().map_or(Token::End, |(token, _)| *token)
    }

    fn second(&self) -> Token<'t> {
        self.tokens.get(1).map_or(Token::End, |(token, _)| *token)
    }

    fn at(&self) -> usize {
        self.tokens.first().map_or(0, |(_, at)| *at)
    }

    fn pass(&mut self) {
        // The end stays, so that there is always a token.
        if let Some((_, rest)) = self.tokens.split_first().filter(|(_, rest)| !rest.is_empty()) {
            self.tokens = rest;
        }
    }

    fn is_passed(&mut self, token: Token<'_>) -> bool {
        let is_it = self.token() == token;
        if is_it {
            self.pass();
        }
        is_it
    }

    fn expect(&mut self, token: Token<'_>, what: &str) -> Parsed<()> {
        if self.is_passed(token) { Ok(()) } else { Err(self.fault(&format!("{what} is missing"))) }
    }

    fn fault(&self, what: &str) -> Fault {
        Fault { at: self.at(), what: what.to_owned() }
    }

    fn part(node: Node, depth: usize, at: usize) -> Parsed<Part> {
        if depth > DEPTH_MAX {
            return Err(Fault { at, what: format!("operators are nested more than {DEPTH_MAX} deep") });
        }
        Ok(Part { node, depth, at })
    }

    fn either(&mut self) -> Parsed<Part> {
        self.chain(Keyword::Or, Self::all, Node::Or)
    }

    fn all(&mut self) -> Parsed<Part> {
        self.chain(Keyword::And, Self::equality, Node::And)
    }

    fn chain(
        &mut self,
        keyword: Keyword,
        operand: impl Fn(&mut Self) -> Parsed<Part>,
        node: impl Fn(Vec<Node>) -> Node,
    ) -> Parsed<Part> {
        let first = operand(self)?;
        if self.token() != Token::Keyword(keyword) {
            return Ok(first);
        }
        let at = first.at;
        let first = boolean(first)?;
        let (mut all, mut depth) = (vec![first.node], first.depth);
        while self.is_passed(Token::Keyword(keyword)) {
            let next = operand(self)?;
            let next = boolean(next)?;
            depth = depth.max(next.depth);
            all.push(next.node);
        }
        Self::part(node(all), depth + 1, at)
    }

    fn equality(&mut self) -> Parsed<Part> {
        let mut left = self.comparison()?;
        loop {
            let (token, second) = (self.token(), self.second());
            let is_not = match (token, second) {
                (Token::Sign("="), _) => false,
                (Token::Sign("<>"), _) => true,
                (Token::Keyword(Keyword::Is), _) => {
                    left = self.is_null(left)?;
                    continue;
                }
                _ => return Ok(left),
            };
            check_equal(&left)?;
            self.pass();
            let right = self.comparison()?;
            check_equal(&right)?;
            if matches!(left.node, Node::Literal(Literal::Boolean(_))) && is_value_literal(&right.node) {
                return Err(Fault { at: right.at, what: "TRUE or FALSE cannot be compared with this".to_owned() });
            }
            left = negated(equal(left, right)?, is_not)?;
        }
    }

    fn is_null(&mut self, left: Part) -> Parsed<Part> {
        self.pass();
        let is_not = self.is_passed(Token::Keyword(Keyword::Not));
        self.expect(Token::Keyword(Keyword::Null), "NULL")?;
        let null = Part { node: Node::Literal(Literal::Null), depth: 1, at: left.at };
        negated(equal(left, null)?, is_not)
    }

    fn comparison(&mut self) -> Parsed<Part> {
        let mut left = self.unary()?;
        loop {
            let is_not = self.token() == Token::Keyword(Keyword::Not);
            let operator = if is_not { self.second() } else { self.token() };
            left = match operator {
                Token::Sign(">") if !is_not => self.compare(left, Order::Greater)?,
                Token::Sign(">=") if !is_not => self.compare(left, Order::GreaterOrEqual)?,
                Token::Sign("<") if !is_not => self.compare(left, Order::Less)?,
                Token::Sign("<=") if !is_not => self.compare(left, Order::LessOrEqual)?,
                Token::Keyword(Keyword::Contains) => self.has(left, is_not, Search::Anywhere)?,
                Token::Keyword(Keyword::StartsWith) => self.has(left, is_not, Search::Start)?,
                Token::Keyword(Keyword::EndsWith) => self.has(left, is_not, Search::End)?,
                Token::Keyword(Keyword::Between) => self.between(left, is_not)?,
                Token::Keyword(Keyword::In) => self.is_in(&left, is_not)?,
                _ => return Ok(left),
            };
        }
    }

    /// Passes an operator, and the NOT before it.
    fn operator(&mut self, is_not: bool) {
        if is_not {
            self.pass();
        }
        self.pass();
    }

    fn compare(&mut self, left: Part, order: Order) -> Parsed<Part> {
        check_ordered(&left)?;
        self.pass();
        let right = self.unary()?;
        check_ordered(&right)?;
        let depth = left.depth.max(right.depth) + 1;
        Self::part(Node::Compare(order, Box::new((left.node, right.node))), depth, left.at)
    }

    fn has(&mut self, left: Part, is_not: bool, search: Search) -> Parsed<Part> {
        self.operator(is_not);
        let text = self.text()?;
        Self::part(Node::Has { search, is_not, of: Box::new(left.node), text }, left.depth + 1, left.at)
    }

    fn between(&mut self, value: Part, is_not: bool) -> Parsed<Part> {
        check_ordered(&value)?;
        self.operator(is_not);
        let low = self.unary()?;
        check_ordered(&low)?;
        self.expect(Token::Keyword(Keyword::And), "AND")?;
        let high = self.unary()?;
        check_ordered(&high)?;
        if !is_not && let (Node::Literal(low), Node::Literal(high_value)) = (&low.node, &high.node) {
            let order = Value::of(low).zip(Value::of(high_value)).map(|(low, high)| compare(high, low));
            if !order.is_some_and(|order| order.is_ok_and(std::cmp::Ordering::is_ge)) {
                return Err(Fault { at: high.at, what: "BETWEEN ends below its beginning".to_owned() });
            }
        }
        let depth = value.depth.max(low.depth).max(high.depth) + 1;
        let operands = Box::new((value.node, low.node, high.node));
        Self::part(if is_not { Node::NotBetween(operands) } else { Node::Between(operands) }, depth, value.at)
    }

    fn is_in(&mut self, left: &Part, is_not: bool) -> Parsed<Part> {
        let Node::Property(property) = left.node else {
            return Err(Fault { at: left.at, what: "IN needs the name of a property before it".to_owned() });
        };
        self.operator(is_not);
        self.expect(Token::Sign("("), "(")?;
        let mut texts = vec![self.text()?];
        while self.is_passed(Token::Sign(",")) {
            texts.push(self.text()?);
        }
        self.expect(Token::Sign(")"), ")")?;
        Self::part(Node::In { is_not, property, texts: texts.into() }, left.depth + 1, left.at)
    }

    fn text(&mut self) -> Parsed<Box<str>> {
        let Token::Text(text) = self.token() else {
            return Err(self.fault("a string in single quotes is missing"));
        };
        self.pass();
        Ok(unquoted(text))
    }

    fn unary(&mut self) -> Parsed<Part> {
        let at = self.at();
        self.depth += 1;
        if self.depth > DEPTH_MAX {
            return Err(Fault { at, what: format!("operators are nested more than {DEPTH_MAX} deep") });
        }
        let part = match self.token() {
            Token::Sign("+") => {
                self.pass();
                self.unary()?
            }
            Token::Sign("-") => {
                self.pass();
                let of = self.unary()?;
                Self::part(Node::Negate(Box::new(of.node)), of.depth + 1, at)?
            }
            Token::Keyword(Keyword::Not) => {
                self.pass();
                let of = self.unary()?;
                negated(boolean(of)?, true)?
            }
            _ => self.primary()?,
        };
        self.depth -= 1;
        Ok(part)
    }

    fn primary(&mut self) -> Parsed<Part> {
        let at = self.at();
        let node = match self.token() {
            Token::Sign("(") => {
                self.pass();
                let inside = self.either()?;
                self.expect(Token::Sign(")"), ")")?;
                return Ok(inside);
            }
            // All names were collected, so each is found.
            Token::Name(name) => Node::Property(self.names.binary_search(&name).unwrap_or_else(|index| index)),
            Token::Text(text) => Node::Literal(Literal::Text(unquoted(text))),
            Token::Whole(image) => Node::Literal(whole(image).ok_or_else(|| self.fault("a number above 64 bits"))?),
            Token::Fraction(image) => Node::Literal(
                fraction(image)
                    .ok_or_else(|| self.fault("a number that RocketMQ's doubles do not have (0.0 is one: write 0)"))?,
            ),
            Token::Keyword(Keyword::True) => Node::Literal(Literal::Boolean(true)),
            Token::Keyword(Keyword::False) => Node::Literal(Literal::Boolean(false)),
            Token::Keyword(Keyword::Null) => Node::Literal(Literal::Null),
            Token::End => return Err(self.fault("the expression ends where a name or a value is needed")),
            Token::Keyword(_) | Token::Sign(_) => return Err(self.fault("a name or a value is missing")),
        };
        self.pass();
        Self::part(node, 1, at)
    }
}

/// Takes a part as a truth value.
fn boolean(part: Part) -> Parsed<Part> {
    match part.node {
        Node::Property(_) => Parser::part(Node::AsBoolean(Box::new(part.node)), part.depth + 1, part.at),
        ref node if node.is_boolean() => Ok(part),
        _ => Err(Fault { at: part.at, what: "a value where a condition is needed".to_owned() }),
    }
}

fn negated(part: Part, is_not: bool) -> Parsed<Part> {
    if !is_not {
        return Ok(part);
    }
    Parser::part(Node::Not(Box::new(part.node)), part.depth + 1, part.at)
}

fn equal(left: Part, right: Part) -> Parsed<Part> {
    let depth = left.depth.max(right.depth) + 1;
    Parser::part(Node::Equal(Box::new((left.node, right.node))), depth, left.at)
}

fn is_value_literal(node: &Node) -> bool {
    matches!(node, Node::Literal(literal) if !matches!(literal, Literal::Boolean(_) | Literal::Null))
}

fn check_equal(part: &Part) -> Parsed<()> {
    match part.node {
        Node::Literal(Literal::Null) => {
            Err(Fault { at: part.at, what: "NULL cannot be compared by = or <> (write IS NULL)".to_owned() })
        }
        _ => Ok(()),
    }
}

/// Only numbers and properties have an order.
fn check_ordered(part: &Part) -> Parsed<()> {
    let is_text = matches!(part.node, Node::Literal(Literal::Text(_)));
    if is_text || part.node.is_boolean() {
        let what = if is_text { "a string" } else { "a condition" };
        return Err(Fault { at: part.at, what: format!("{what} has no order: numbers and properties are compared") });
    }
    Ok(())
}

fn unquoted(text: &str) -> Box<str> {
    text.replace("''", "'").into()
}

fn whole(image: &str) -> Option<Literal> {
    let number: i64 = image.trim_end_matches(['l', 'L']).parse().ok()?;
    Some(i32::try_from(number).map_or(Literal::Long(number), Literal::Integer))
}

/// Returns a number with a point. RocketMQ refuses zero and what is too large.
fn fraction(image: &str) -> Option<Literal> {
    let number: f64 = image.parse().ok()?;
    (number > 0.0 && number.is_finite()).then_some(Literal::Double(number))
}
