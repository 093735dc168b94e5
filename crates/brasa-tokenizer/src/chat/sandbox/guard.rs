//! Rebuilds a template with every operation that can cost much replaced by one that pays.
//!
//! The parsed tree is rebuilt node by node. `a + b` becomes a call of the filter [`ADD`] with two arguments, a literal list a
//! call of [`LIST`], text between tags an output of a constant, and so on. No template can name these filters, because their
//! names are not identifiers. The match is exhaustive, so this crate does not compile with a new kind of node in the engine until
//! the node is handled.

use std::cell::Cell;

use minijinja::machinery::Span;
use minijinja::machinery::ast::{
    AutoEscape, BinOp, BinOpKind, Block, Call, CallArg, CallBlock, CallType, Compare, CompareOp, Const, Do,
    EmitExpr, Expr, Extends, Filter, FilterBlock, ForLoop, FromImport, GetAttr, GetItem, IfCond, IfExpr,
    Import, Include, Macro, Set, SetBlock, Spanned, Stmt, Template, Test, UnaryOp, UnaryOpKind, Var,
    WithBlock,
};
use minijinja::{Error, ErrorKind, Value};

use super::values;

/// `a + b`.
pub const ADD: &str = "\0add";
/// `a * b`.
pub const MULTIPLY: &str = "\0multiply";
/// `a ~ b`.
pub const CONCATENATE: &str = "\0concatenate";
/// `a == b`.
pub const EQUAL: &str = "\0equal";
/// `a != b`.
pub const UNEQUAL: &str = "\0unequal";
/// `a < b`.
pub const LESS: &str = "\0less";
/// `a <= b`.
pub const AT_MOST: &str = "\0at_most";
/// `a > b`.
pub const GREATER: &str = "\0greater";
/// `a >= b`.
pub const AT_LEAST: &str = "\0at_least";
/// `a in b`.
pub const IN: &str = "\0in";
/// `a[b]`, unless `b` is a literal text.
pub const ITEM: &str = "\0item";
/// `[a, b]` and `(a, b)`.
pub const LIST: &str = "\0list";
/// `{a: b}`, keys and values in turn.
pub const MAP: &str = "\0map";
/// Pays for a walk over all of a value that is about to be compared or passed to a method.
pub const WALK: &str = "\0walk";
/// Pays like [`WALK`] for a value that the engine is about to compare, and removes marks from a text.
pub const COMPARED: &str = "\0compared";
/// Pays for the items or bytes of a value that is about to be looped over, cut or given to a function.
pub const SCAN: &str = "\0scan";
/// `value[start:stop:step]`, with none for an omitted part.
pub const SLICE: &str = "\0slice";
/// `{% set namespace.name = value %}`.
pub const SET: &str = "\0set";
/// Pays for a macro, which keeps all variables that it uses.
pub const MACRO: &str = "\0macro";

thread_local! {
    /// Number of variable names in the expressions rebuilt so far.
    static NAMES: Cell<u64> = const { Cell::new(0) };
}

/// A captured text that is about to be stored in a namespace.
const CAPTURED: &str = "\0captured";

type Result<T> = std::result::Result<T, Error>;

/// The guarded form of a statement, usually of the whole template.
pub fn guarded<'a>(statement: &Stmt<'a>) -> Result<Stmt<'a>> {
    let mut out = Vec::with_capacity(1);
    guard(statement, &mut out)?;
    let span = Span::default();
    Ok(match out.pop() {
        Some(only) if out.is_empty() => only,
        last => {
            out.extend(last);
            Stmt::Template(Spanned::new(Template { children: out }, span))
        }
    })
}

fn body<'a>(statements: &[Stmt<'a>]) -> Result<Vec<Stmt<'a>>> {
    let mut out = Vec::with_capacity(statements.len());
    statements.iter().try_for_each(|statement| guard(statement, &mut out))?;
    Ok(out)
}

fn guard<'a>(statement: &Stmt<'a>, out: &mut Vec<Stmt<'a>>) -> Result<()> {
    let guarded = match statement {
        Stmt::Template(x) => {
            Stmt::Template(Spanned::new(Template { children: body(&x.children)? }, x.span()))
        }
        Stmt::EmitExpr(x) => emit(expr(&x.expr)?, x.span()),
        Stmt::EmitRaw(x) => emit(constant(Value::from(x.raw), x.span()), x.span()),
        Stmt::ForLoop(x) => Stmt::ForLoop(Spanned::new(
            ForLoop {
                target: target(&x.target)?,
                iter: filter(SCAN, [expr(&x.iter)?], x.span()),
                filter_expr: x.filter_expr.as_ref().map(expr).transpose()?,
                recursive: x.recursive,
                body: body(&x.body)?,
                else_body: body(&x.else_body)?,
            },
            x.span(),
        )),
        Stmt::IfCond(x) => Stmt::IfCond(Spanned::new(
            IfCond { expr: expr(&x.expr)?, true_body: body(&x.true_body)?, false_body: body(&x.false_body)? },
            x.span(),
        )),
        Stmt::WithBlock(x) => {
            let assignments = x
                .assignments
                .iter()
                .map(|(name, value)| Ok((target(name)?, expr(value)?)))
                .collect::<Result<_>>()?;
            Stmt::WithBlock(Spanned::new(WithBlock { assignments, body: body(&x.body)? }, x.span()))
        }
        Stmt::Set(x) => match &x.target {
            Expr::GetAttr(attribute) => set_attribute(attribute, expr(&x.expr)?, x.span())?,
            other => Stmt::Set(Spanned::new(Set { target: target(other)?, expr: expr(&x.expr)? }, x.span())),
        },
        Stmt::SetBlock(x) => {
            let capture = |name| -> Result<Stmt<'a>> {
                let filter = x.filter.as_ref().map(expr).transpose()?;
                Ok(Stmt::SetBlock(Spanned::new(
                    SetBlock { target: name, filter, body: body(&x.body)? },
                    x.span(),
                )))
            };
            match &x.target {
                Expr::GetAttr(attribute) => {
                    let captured = || Expr::Var(Spanned::new(Var { id: CAPTURED }, x.span()));
                    out.push(capture(captured())?);
                    set_attribute(attribute, captured(), x.span())?
                }
                other => capture(target(other)?)?,
            }
        }
        Stmt::AutoEscape(x) => Stmt::AutoEscape(Spanned::new(
            AutoEscape { enabled: expr(&x.enabled)?, body: body(&x.body)? },
            x.span(),
        )),
        Stmt::FilterBlock(x) => Stmt::FilterBlock(Spanned::new(
            FilterBlock { filter: expr(&x.filter)?, body: body(&x.body)? },
            x.span(),
        )),
        Stmt::Block(x) => Stmt::Block(Spanned::new(
            Block { name: x.name, required: x.required, body: body(&x.body)? },
            x.span(),
        )),
        // There are no other templates to be found; these fail when they are reached, as in transformers.
        Stmt::Import(x) => {
            Stmt::Import(Spanned::new(Import { expr: expr(&x.expr)?, name: target(&x.name)? }, x.span()))
        }
        Stmt::FromImport(x) => {
            let names = x
                .names
                .iter()
                .map(|(name, alias)| Ok((target(name)?, alias.as_ref().map(target).transpose()?)))
                .collect::<Result<_>>()?;
            Stmt::FromImport(Spanned::new(FromImport { expr: expr(&x.expr)?, names }, x.span()))
        }
        Stmt::Extends(x) => Stmt::Extends(Spanned::new(Extends { name: expr(&x.name)? }, x.span())),
        Stmt::Include(x) => Stmt::Include(Spanned::new(
            Include { name: expr(&x.name)?, ignore_missing: x.ignore_missing },
            x.span(),
        )),
        Stmt::Macro(x) => {
            let (declaration, names) = macro_declaration(x)?;
            out.push(pay_for_macro(names, x.span()));
            Stmt::Macro(declaration)
        }
        Stmt::CallBlock(x) => {
            let (macro_decl, names) = macro_declaration(&x.macro_decl)?;
            out.push(pay_for_macro(names, x.span()));
            Stmt::CallBlock(Spanned::new(CallBlock { call: call(&x.call)?, macro_decl }, x.span()))
        }
        Stmt::Continue(x) => Stmt::Continue(Spanned::new(minijinja::machinery::ast::Continue, x.span())),
        Stmt::Break(x) => Stmt::Break(Spanned::new(minijinja::machinery::ast::Break, x.span())),
        Stmt::Do(x) => Stmt::Do(Spanned::new(Do { call: call(&x.call)? }, x.span())),
    };
    out.push(guarded);
    Ok(())
}

fn emit(expr: Expr<'_>, span: Span) -> Stmt<'_> {
    Stmt::EmitExpr(Spanned::new(EmitExpr { expr }, span))
}

fn constant<'a>(value: Value, span: Span) -> Expr<'a> {
    Expr::Const(Spanned::new(Const { value }, span))
}

/// A call of a filter; the first argument is the value that it is applied to.
fn filter<'a>(name: &'static str, args: impl IntoIterator<Item = Expr<'a>>, span: Span) -> Expr<'a> {
    let mut args = args.into_iter();
    let expr = args.next();
    Expr::Filter(Spanned::new(Filter { name, expr, args: args.map(CallArg::Pos).collect() }, span))
}

/// Sets an attribute of a namespace, by a filter that returns an empty text, so that nothing is written.
fn set_attribute<'a>(attribute: &GetAttr<'a>, value: Expr<'a>, span: Span) -> Result<Stmt<'a>> {
    let name = constant(Value::from(attribute.name), span);
    Ok(emit(filter(SET, [value, expr(&attribute.expr)?, name], span), span))
}

fn pay_for_macro<'a>(names: u64, span: Span) -> Stmt<'a> {
    emit(filter(MACRO, [constant(Value::from(names), span)], span), span)
}

/// Rebuilds a macro's declaration; also returns how many variables it may keep alive.
fn macro_declaration<'a>(x: &Spanned<Macro<'a>>) -> Result<(Spanned<Macro<'a>>, u64)> {
    let before = NAMES.get();
    let declaration = Macro {
        name: x.name,
        args: x.args.iter().map(target).collect::<Result<_>>()?,
        defaults: x.defaults.iter().map(expr).collect::<Result<_>>()?,
        body: body(&x.body)?,
    };
    let names = NAMES.get().wrapping_sub(before) + x.args.len() as u64;
    Ok((Spanned::new(declaration, x.span()), names))
}

/// The left side of an assignment.
fn target<'a>(x: &Expr<'a>) -> Result<Expr<'a>> {
    match x {
        Expr::Var(x) => Ok(Expr::Var(Spanned::new(Var { id: x.id }, x.span()))),
        Expr::List(list) => {
            let items = list.items.iter().map(target).collect::<Result<_>>()?;
            Ok(Expr::List(Spanned::new(minijinja::machinery::ast::List { items }, list.span())))
        }
        Expr::Tuple(tuple) => {
            let items = tuple.items.iter().map(target).collect::<Result<_>>()?;
            Ok(Expr::List(Spanned::new(minijinja::machinery::ast::List { items }, tuple.span())))
        }
        other => Err(Error::new(
            ErrorKind::SyntaxError,
            format!(
                "assigning to {} is not supported here (line {})",
                other.description(),
                other.span().start_line
            ),
        )),
    }
}

fn expr<'a>(x: &Expr<'a>) -> Result<Expr<'a>> {
    let span = x.span();
    Ok(match x {
        Expr::Var(x) => {
            NAMES.set(NAMES.get().wrapping_add(1));
            Expr::Var(Spanned::new(Var { id: x.id }, span))
        }
        Expr::Const(x) => constant(x.value.clone(), span),
        Expr::Slice(x) => {
            let bound = |bound: &Option<Expr<'a>>| match bound {
                Some(bound) => expr(bound),
                None => Ok(constant(Value::from(()), span)),
            };
            filter(SLICE, [expr(&x.expr)?, bound(&x.start)?, bound(&x.stop)?, bound(&x.step)?], span)
        }
        Expr::UnaryOp(x) => {
            #[expect(clippy::needless_match, reason = "the kind cannot be copied")]
            let op = match x.op {
                UnaryOpKind::Not => UnaryOpKind::Not,
                UnaryOpKind::Neg => UnaryOpKind::Neg,
            };
            Expr::UnaryOp(Spanned::new(UnaryOp { op, expr: expr(&x.expr)? }, span))
        }
        Expr::BinOp(x) => {
            let (left, right) = (expr(&x.left)?, expr(&x.right)?);
            let name = match x.op {
                BinOpKind::Eq => EQUAL,
                BinOpKind::Ne => UNEQUAL,
                BinOpKind::Lt => LESS,
                BinOpKind::Lte => AT_MOST,
                BinOpKind::Gt => GREATER,
                BinOpKind::Gte => AT_LEAST,
                BinOpKind::Add => ADD,
                BinOpKind::Mul => MULTIPLY,
                BinOpKind::Concat => CONCATENATE,
                BinOpKind::In => IN,
                // These choose one side, or are defined for numbers only.
                BinOpKind::ScAnd
                | BinOpKind::ScOr
                | BinOpKind::Sub
                | BinOpKind::Div
                | BinOpKind::FloorDiv
                | BinOpKind::Rem
                | BinOpKind::Pow => {
                    return Ok(Expr::BinOp(Spanned::new(BinOp { op: x.op, left, right }, span)));
                }
            };
            filter(name, [left, right], span)
        }
        Expr::Compare(x) => {
            let operand = |x: &Expr<'a>| -> Result<Expr<'a>> { Ok(filter(COMPARED, [expr(x)?], span)) };
            let ops = x
                .ops
                .iter()
                .map(|op| Ok(CompareOp { op: op.op, expr: operand(&op.expr)? }))
                .collect::<Result<_>>()?;
            Expr::Compare(Spanned::new(Compare { expr: operand(&x.expr)?, ops }, span))
        }
        Expr::IfExpr(x) => Expr::IfExpr(Spanned::new(
            IfExpr {
                test_expr: expr(&x.test_expr)?,
                true_expr: expr(&x.true_expr)?,
                false_expr: x.false_expr.as_ref().map(expr).transpose()?,
            },
            span,
        )),
        Expr::Filter(x) => Expr::Filter(Spanned::new(
            Filter { name: x.name, expr: x.expr.as_ref().map(expr).transpose()?, args: args(&x.args, None)? },
            span,
        )),
        Expr::Test(x) => Expr::Test(Spanned::new(
            Test { name: x.name, expr: expr(&x.expr)?, args: args(&x.args, None)? },
            span,
        )),
        Expr::GetAttr(x) => Expr::GetAttr(Spanned::new(GetAttr { expr: expr(&x.expr)?, name: x.name }, span)),
        Expr::GetItem(x) => {
            let (of, subscript_expr) = (expr(&x.expr)?, expr(&x.subscript_expr)?);
            if matches!(&subscript_expr, Expr::Const(key) if key.value.as_str().is_some()) {
                return Ok(Expr::GetItem(Spanned::new(GetItem { expr: of, subscript_expr }, span)));
            }
            filter(ITEM, [of, subscript_expr], span)
        }
        Expr::Call(x) => Expr::Call(call(x)?),
        Expr::List(x) => list(&x.items, x.as_const(), span)?,
        Expr::Tuple(x) => list(&x.items, x.as_const(), span)?,
        Expr::Map(x) => {
            if let Some(map) = x.as_const() {
                return Ok(constant(values::own(map)?, span));
            }
            let pairs = x.keys.iter().zip(&x.values).flat_map(|(key, value)| [expr(key), expr(value)]);
            filter(MAP, pairs.collect::<Result<Vec<_>>>()?, span)
        }
    })
}

fn list<'a>(items: &[Expr<'a>], constants: Option<Value>, span: Span) -> Result<Expr<'a>> {
    match constants {
        Some(list) => Ok(constant(values::own(list)?, span)),
        None => Ok(filter(LIST, items.iter().map(expr).collect::<Result<Vec<_>>>()?, span)),
    }
}

fn call<'a>(x: &Spanned<Call<'a>>) -> Result<Spanned<Call<'a>>> {
    // A method may compare and keep what it is given; a function is a macro, one of ours, or a loop that recurses.
    let pay = if matches!(x.identify_call(), CallType::Method(..)) { WALK } else { SCAN };
    Ok(Spanned::new(Call { expr: expr(&x.expr)?, args: args(&x.args, Some(pay))? }, x.span()))
}

fn args<'a>(args: &[CallArg<'a>], pay: Option<&'static str>) -> Result<Vec<CallArg<'a>>> {
    let paid = |x: &Expr<'a>| -> Result<Expr<'a>> {
        let value = expr(x)?;
        Ok(match pay {
            Some(name) if !matches!(value, Expr::Const(_)) => filter(name, [value], x.span()),
            _ => value,
        })
    };
    args.iter()
        .map(|arg| {
            Ok(match arg {
                CallArg::Pos(x) => CallArg::Pos(paid(x)?),
                CallArg::Kwarg(name, x) => CallArg::Kwarg(name, paid(x)?),
                CallArg::PosSplat(x) => CallArg::PosSplat(filter(WALK, [expr(x)?], x.span())),
                CallArg::KwargSplat(x) => CallArg::KwargSplat(filter(WALK, [expr(x)?], x.span())),
            })
        })
        .collect()
}
