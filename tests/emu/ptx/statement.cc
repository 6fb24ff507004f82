// Operands of instructions.
#include "statement.hpp"

#include <algorithm>
#include <stdarg.h>
#include <stdio.h>

#include "decoder.hpp"
#include "machine.hpp"

namespace ptx
{
void Statement::refuse(const char *form, ...) const
{
    char text[512];
    va_list list;
    va_start(list, form);
    vsnprintf(text, sizeof text, form, list);
    va_end(list);
    throw Refused{"PTX line " + std::to_string(line) + ": " + base + ": " + text};
}

// --- modifiers ---

bool Statement::take(const char *word)
{
    auto at = std::find(words.begin(), words.end(), word);
    if (at == words.end())
        return false;
    words.erase(at);
    return true;
}

int Statement::take_of(std::initializer_list<const char *> list)
{
    int k = 0;
    for (const char *word : list) {
        if (take(word))
            return k;
        k++;
    }
    return -1;
}

int Statement::must_take_of(std::initializer_list<const char *> list)
{
    const int k = take_of(list);
    std::string all;
    for (const char *word : list)
        all += std::string(all.empty() ? "." : ", .") + word;
    if (k < 0)
        refuse("one of %s is expected", all.c_str());
    return k;
}

Type Statement::take_type()
{
    for (size_t k = 0; k < words.size(); k++) {
        const Type t = type_of(words[k]);
        if (t == Type::none)
            continue;
        words.erase(words.begin() + (ptrdiff_t)k);
        return t;
    }
    refuse("a type is expected");
}

Type Statement::last_type() const
{
    for (size_t k = words.size(); k-- > 0;)
        if (type_of(words[k]) != Type::none)
            return type_of(words[k]);
    return Type::none;
}

// --- operands ---

size_t Statement::n_operand() const
{
    return operands.size();
}

std::string Statement::word(size_t token) const
{
    return decoder->c.text(token);
}

Statement::Operand &Statement::take_operand(size_t k)
{
    if (k >= operands.size())
        refuse("operand %zu is missing", k + 1);
    operands[k].used = true;
    return operands[k];
}

static Next widen_unsigned(Warp &w, const Inst &i, uint32_t lanes)
{
    return unary<uint64_t, uint32_t>(w, i, lanes, [](uint32_t v) { return (uint64_t)v; });
}
template <class To, class From> static Next widen_signed(Warp &w, const Inst &i, uint32_t lanes)
{
    return unary<To, From>(w, i, lanes, [](From v) { return (To)v; });
}
static Next narrow(Warp &w, const Inst &i, uint32_t lanes)
{
    return unary<uint32_t, uint64_t>(w, i, lanes, [](uint64_t v) { return (uint32_t)v; });
}

// The handler that brings a value of type t into a register of more bits; null: none is needed.
static Run widener(Type t, uint32_t bits)
{
    if (!is_signed(t) || t == Type::s16x2)
        return bits == 64 ? widen_unsigned : nullptr;
    switch (bits_of(t)) {
    case 8:
        return bits == 64   ? widen_signed<int64_t, int8_t>
               : bits == 32 ? widen_signed<int32_t, int8_t>
                            : widen_signed<int16_t, int8_t>;
    case 16:
        return bits == 64 ? widen_signed<int64_t, int16_t> : widen_signed<int32_t, int16_t>;
    default:
        return widen_signed<int64_t, int32_t>;
    }
}

Slot Statement::write(const std::string &name, Type t)
{
    if (name == "_")
        return scratch(std::max(bits_of(t), 32u));
    const Register *r = decoder->find_register(name);
    if (!r)
        refuse("%s is no register", name.c_str());
    if (r->bits < bits_of(t) || (r->bits == 1) != (t == Type::pred))
        refuse("%s has %u bits, %u are written", name.c_str(), r->bits, bits_of(t));
    const Run widens = r->bits > bits_of(t) ? widener(t, r->bits) : nullptr;
    if (!widens)
        return r->slot;
    if (r->bits == 128)
        refuse("%s has 128 bits, %u are written", name.c_str(), bits_of(t));
    Extra x = {};
    x.inst.run = widens;
    x.s = scratch(bits_of(t));
    x.d = r->slot;
    after.push_back(x);
    return x.s;
}

// The bits of a number, or of its negative, as a value of a type.
static uint64_t bits_as(uint64_t bits, bool negative, Type is, Type wanted)
{
    if (negative)
        bits = is == Type::f32 ? bits ^ 1u << 31 : is == Type::f64 ? bits ^ 1ull << 63 : -bits;
    if (is == Type::f64 && wanted == Type::f32) {
        double wide;
        memcpy(&wide, &bits, 8);
        const float narrow = (float)wide;
        bits = 0;
        memcpy(&bits, &narrow, 4);
    } else if (is == Type::f32 && wanted == Type::f64) {
        float narrow;
        memcpy(&narrow, &bits, 4);
        const double wide = narrow;
        memcpy(&bits, &wide, 8);
    }
    return bits;
}

// The n tokens from `token` on: a register, a constant, a variable's address.
Slot Statement::read(size_t token, size_t n, Type t)
{
    const std::string first = word(token);
    const uint32_t bits = bits_of(t);
    const Register *r = n == 1 ? decoder->find_special(first) : nullptr;
    if (n == 1 && !r)
        r = decoder->find_register(first);
    if (r) {
        if (r->bits < bits || (r->bits == 1) != (t == Type::pred))
            refuse("%s has %u bits, %u are read", first.c_str(), r->bits, bits);
        if (r->bits <= 32 || r->bits == bits)
            return r->slot;
        if (r->bits == 128)
            refuse("%s has 128 bits, %u are read", first.c_str(), bits);
        Extra x = {};
        x.inst.run = narrow;
        x.s = r->slot;
        x.d = scratch(32);
        before.push_back(x);
        return x.d;
    }
    Cursor number(decoder->m, token);
    uint64_t value = 0;
    if (const Variable *v = decoder->find_variable(first)) {
        number.next();
        return decoder->address(*v, n > 1 ? number.integer() : 0, bits);
    }
    const bool negative = number.take("-");
    const Token &at = number.peek();
    const Type is = number_of(at.at, at.length, &value);
    if (is == Type::none || n != 1u + negative)
        refuse("'%s' is no operand", first.c_str());
    return decoder->constant(bits_as(value, negative, is, t), bits);
}

Slot Statement::target(size_t k, Type t)
{
    const Operand &o = take_operand(k);
    if (o.n != 1)
        refuse("operand %zu: a register is expected", k + 1);
    d.push_back(write(word(o.token), t));
    return d.back();
}

size_t Statement::targets_any(size_t k, uint32_t *bits)
{
    const std::vector<size_t> tokens = elements(take_operand(k));
    *bits = 0;
    for (size_t token : tokens) {
        const Register *r = decoder->find_register(word(token));
        if (r && *bits && r->bits != *bits)
            refuse("registers of %u and %u bits in one list", *bits, r->bits);
        *bits = r ? r->bits : *bits;
    }
    for (size_t token : tokens) {
        const Register *r = decoder->find_register(word(token));
        if (!r && word(token) != "_")
            refuse("%s is no register", word(token).c_str());
        d.push_back(r ? r->slot : scratch(64));
    }
    *bits = *bits ? *bits : 64;
    return tokens.size();
}

Slot Statement::source(size_t k, Type t)
{
    const Operand &o = take_operand(k);
    s.push_back(read(o.token, o.n, t));
    return s.back();
}

Slot Statement::source_pred(size_t k, bool *negated)
{
    const Operand &o = take_operand(k);
    *negated = word(o.token) == "!";
    s.push_back(read(o.token + *negated, o.n - *negated, Type::pred));
    return s.back();
}

std::vector<size_t> Statement::elements(const Operand &o) const
{
    std::vector<size_t> tokens;
    if (word(o.token) != "{") {
        tokens.push_back(o.token);
        return tokens;
    }
    for (size_t k = o.token + 1; k + 1 < o.token + o.n; k++)
        if (word(k) != ",")
            tokens.push_back(k);
    return tokens;
}

size_t Statement::n_element(size_t k) const
{
    return k < operands.size() ? elements(operands[k]).size() : 0;
}

bool Statement::is_sink(size_t k) const
{
    return k < operands.size() && operands[k].n == 1 && word(operands[k].token) == "_";
}

size_t Statement::targets(size_t k, Type t)
{
    const std::vector<size_t> tokens = elements(take_operand(k));
    for (size_t token : tokens)
        d.push_back(write(word(token), t));
    return tokens.size();
}

size_t Statement::sources(size_t k, Type t)
{
    const std::vector<size_t> tokens = elements(take_operand(k));
    size_t n = 0;
    for (size_t at = 0; at < tokens.size(); at++, n++) {
        const bool negative = word(tokens[at]) == "-";
        s.push_back(read(tokens[at], 1 + negative, t));
        at += negative;
    }
    return n;
}

bool Statement::targets_pair(size_t k, Type first, Type second)
{
    const Operand &o = take_operand(k);
    const bool pair = o.n == 3 && word(o.token + 1) == "|";
    if (o.n != 1 && !pair)
        refuse("operand %zu: 'd' or 'd|p' is expected", k + 1);
    d.push_back(write(word(o.token), first));
    d.push_back(pair ? write(word(o.token + 2), second) : scratch(32));
    return pair;
}

uint32_t Statement::address(size_t k, int n)
{
    const Operand &o = take_operand(k);
    if (o.n < 3 || word(o.token) != "[")
        refuse("operand %zu: an address is expected", k + 1);
    Cursor at(decoder->m, o.token + 1);
    const std::string first = word(at.at);
    int64_t offset = 0;
    uint32_t bits = 64;
    if (const Register *r = decoder->find_register(first)) {
        if (r->bits != 32 && r->bits != 64)
            refuse("%s of %u bits is no address", first.c_str(), r->bits);
        s.push_back(r->slot);
        bits = r->bits;
        at.next();
    } else if (const Variable *v = decoder->find_variable(first)) {
        if (v->space == Space::local)
            inst.space = Space::local;
        s.push_back(decoder->address(*v, 0, 64));
        at.next();
    } else {
        s.push_back(decoder->constant((uint64_t)at.integer(), 64));
    }
    if (at.is("+") || at.is("-")) {
        at.take("+");
        offset = at.integer();
    }
    if (!at.is("]") && !at.is(","))
        refuse("operand %zu: '%s' in an address is not known", k + 1, word(at.at).c_str());
    inst.value[n] = offset;
    return bits;
}

size_t Statement::coordinates(size_t k)
{
    const Operand &o = operands.at(k);
    size_t n = 0;
    bool inside = false;
    for (size_t token = o.token; token < o.token + o.n; token++) {
        const std::string w = word(token);
        if (w == "{" || w == "}") {
            inside = w == "{";
        } else if (inside && w != ",") {
            const bool negative = w == "-";
            s.push_back(read(token, 1 + negative, Type::s32));
            token += negative;
            n++;
        }
    }
    return n;
}

bool Statement::is_immediate(size_t k) const
{
    if (k >= operands.size())
        return false;
    const size_t token = operands[k].token + (word(operands[k].token) == "-");
    return decoder->c.integer_at(token);
}

int64_t Statement::immediate(size_t k)
{
    const Operand &o = take_operand(k);
    Cursor at(decoder->m, o.token);
    const int64_t value = at.integer();
    if (at.at != o.token + o.n)
        refuse("operand %zu: a constant is expected", k + 1);
    return value;
}

void Statement::label(size_t k)
{
    const Operand &o = take_operand(k);
    labels.push_back(word(o.token));
}

std::vector<uint32_t> *Statement::label_list(size_t k)
{
    const std::string wanted = word(take_operand(k).token);
    for (size_t depth = decoder->scopes.size(); depth-- > 0;) {
        auto known = decoder->scopes[depth].targets.find(wanted);
        if (known == decoder->scopes[depth].targets.end())
            continue;
        auto *list = keep(std::vector<uint32_t>(known->second.size()));
        lists.push_back({list, known->second});
        return list;
    }
    refuse("there is no list of labels %s", wanted.c_str());
}

std::string Statement::name(size_t k) const
{
    return k < operands.size() ? word(operands[k].token) : "";
}

Callee &Statement::function(size_t k)
{
    Callee &callee = decoder->callee(word(take_operand(k).token));
    inst.call = true;
    for (size_t n = 0; n < decoder->callees.size(); n++)
        if (&decoder->callees[n] == &callee)
            inst.target = (uint32_t)n;
    return callee;
}

std::vector<Variable> Statement::locals(size_t k)
{
    const Operand &o = take_operand(k);
    std::vector<Variable> found;
    if (word(o.token) != "(")
        refuse("operand %zu: '(..)' is expected", k + 1);
    for (size_t token = o.token + 1; token + 1 < o.token + o.n; token++) {
        if (word(token) == ",")
            continue;
        const Variable *v = decoder->find_variable(word(token));
        if (!v || v->space != Space::local)
            refuse("%s is no parameter of a call", word(token).c_str());
        found.push_back(*v);
    }
    return found;
}

Entry &Statement::entry()
{
    return decoder->e;
}

Slot Statement::scratch(uint32_t bits)
{
    return decoder->allocate(bits);
}

void Statement::behind(Run run)
{
    Extra x = {};
    x.inst = inst;
    x.inst.call = false;
    x.inst.run = run;
    x.d = x.s = scratch(32);
    after.push_back(x);
}

void Statement::kept(std::shared_ptr<void> p)
{
    decoder->e.kept.push_back(std::move(p));
}
} // namespace ptx
