// PTX text as tokens, and what a module holds outside its functions' bodies.
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "tests/emu/emu.h"
#include "tokens.hpp"

namespace ptx
{
static std::string words(const char *form, va_list list)
{
    char text[1024];
    vsnprintf(text, sizeof text, form, list);
    return text;
}

void refuse(const char *form, ...)
{
    va_list list;
    va_start(list, form);
    Refused refused{words(form, list)};
    va_end(list);
    throw refused;
}

// --- types ---

static const struct {
    const char *name;
    uint32_t bits;
} types[] = {
    {"", 0},        {"b8", 8},     {"b16", 16},   {"b32", 32},   {"b64", 64},  {"b128", 128},
    {"u8", 8},      {"u16", 16},   {"u32", 32},   {"u64", 64},   {"s8", 8},    {"s16", 16},
    {"s32", 32},    {"s64", 64},   {"f16", 16},   {"f16x2", 32}, {"bf16", 16}, {"bf16x2", 32},
    {"tf32", 32},   {"f32", 32},   {"f64", 64},   {"e4m3", 8},   {"e5m2", 8},  {"e4m3x2", 16},
    {"e5m2x2", 16}, {"u16x2", 32}, {"s16x2", 32}, {"pred", 1},
};

Type type_of(const std::string &name)
{
    for (size_t i = 1; i < sizeof types / sizeof *types; i++)
        if (name == types[i].name)
            return (Type)i;
    return Type::none;
}

const char *name_of(Type t)
{
    return types[(size_t)t].name;
}

uint32_t bits_of(Type t)
{
    return types[(size_t)t].bits;
}

// --- tokens ---

static bool in_word(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '$' || c == '%' || c == '.';
}

// The first character behind blanks and comments; counts lines.
static const char *skip_blanks(const char *p, uint32_t *line)
{
    for (;;) {
        if (*p == '\n') {
            ++*line;
            p++;
        } else if (*p == ' ' || *p == '\t' || *p == '\r') {
            p++;
        } else if (p[0] == '/' && p[1] == '/') {
            while (*p && *p != '\n')
                p++;
        } else if (p[0] == '/' && p[1] == '*') {
            for (p += 2; *p && !(p[0] == '*' && p[1] == '/'); p++)
                *line += *p == '\n';
            p += *p ? 2 : 0;
        } else {
            return p;
        }
    }
}

static void split(Module &m)
{
    uint32_t line = 1;
    m.tokens.reserve(m.text.size() / 5);
    for (const char *p = m.text.c_str(); *(p = skip_blanks(p, &line));) {
        const char *begin = p;
        if (in_word(*p)) {
            while (in_word(*p))
                p++;
        } else if (*p == '"') {
            for (p++; *p && *p != '"'; p++)
                p += *p == '\\' && p[1];
            if (!*p)
                refuse("line %u: a string without its end", line);
            p++;
        } else {
            p++;
        }
        m.tokens.push_back({begin, (uint32_t)(p - begin), line});
    }
}

const Token &Cursor::peek(size_t ahead) const
{
    static const Token none = {"", 0, 0};
    return at + ahead < m.tokens.size() ? m.tokens[at + ahead] : none;
}

void Cursor::refuse(const char *form, ...) const
{
    va_list list;
    va_start(list, form);
    Refused refused{words(form, list)};
    va_end(list);
    const Token &t = end() && at ? m.tokens[m.tokens.size() - 1] : peek();
    refused.why = "PTX line " + std::to_string(t.line) + ": " + refused.why;
    throw refused;
}

std::string Cursor::next()
{
    if (end())
        refuse("the text ends in the middle of something");
    return text(at++);
}

bool Cursor::is(const char *word, size_t ahead) const
{
    const Token &t = peek(ahead);
    return t.length == strlen(word) && !memcmp(t.at, word, t.length);
}

bool Cursor::take(const char *word)
{
    if (!is(word))
        return false;
    at++;
    return true;
}

void Cursor::must(const char *word)
{
    if (!take(word))
        refuse("'%s' is expected in front of '%s'", word, end() ? "the end" : text(at).c_str());
}

bool Cursor::integer_at(size_t token) const
{
    const char c = token < m.tokens.size() ? *m.tokens[token].at : 0;
    return c >= '0' && c <= '9';
}

int64_t Cursor::integer()
{
    const bool negative = take("-");
    if (!negative)
        take("+");
    uint64_t bits = 0;
    if (end() || number_of(peek().at, peek().length, &bits) != Type::s64)
        refuse("a whole number is expected in front of '%s'", end() ? "the end" : text(at).c_str());
    at++;
    return (int64_t)(negative ? -bits : bits);
}

void Cursor::skip_braces()
{
    for (int depth = 1; depth;) {
        if (end())
            refuse("a '{' without its '}'");
        depth += is("{") - is("}");
        at++;
    }
}

Type number_of(const char *text, size_t length, uint64_t *bits)
{
    const std::string word(text, length);
    char *rest = nullptr;
    if (word.empty() || word[0] < '0' || word[0] > '9')
        return Type::none;
    if (word[0] == '0' && length == 10 && (word[1] == 'f' || word[1] == 'F')) {
        *bits = strtoull(word.c_str() + 2, &rest, 16);
        return *rest ? Type::none : Type::f32;
    }
    if (word[0] == '0' && length == 18 && (word[1] == 'd' || word[1] == 'D')) {
        *bits = strtoull(word.c_str() + 2, &rest, 16);
        return *rest ? Type::none : Type::f64;
    }
    if (word[0] == '0' && length > 2 && (word[1] == 'b' || word[1] == 'B'))
        *bits = strtoull(word.c_str() + 2, &rest, 2);
    else
        *bits = strtoull(word.c_str(), &rest, 0);
    if (*rest == 'U')
        rest++;
    if (!*rest)
        return Type::s64;
    const double value = strtod(word.c_str(), &rest);
    if (*rest)
        return Type::none;
    memcpy(bits, &value, 8);
    return Type::f64;
}

// --- variables ---

Variable take_variable(Cursor &c, Space space)
{
    Variable v = {"", space, 0, 0, 0};
    Type type = Type::none;
    uint64_t elements = 1;
    for (;;) {
        const std::string word = c.next();
        if (word == ".align") {
            v.align = (uint32_t)c.integer();
        } else if (word == ".ptr") { // of what a parameter points to: space and alignment
            while (c.is(".global") || c.is(".shared") || c.is(".const") || c.is(".local"))
                c.next();
            if (c.take(".align"))
                c.integer();
        } else if (word == ".v2" || word == ".v4") {
            elements = (uint64_t)(word[2] - '0');
        } else if (word[0] == '.' && type_of(word.substr(1)) != Type::none) {
            type = type_of(word.substr(1));
        } else if (word[0] == '.') {
            c.refuse("'%s' of a variable is not known", word.c_str());
        } else {
            v.name = word;
            break;
        }
    }
    if (type == Type::none || type == Type::pred)
        c.refuse("the variable %s has no type", v.name.c_str());
    const uint32_t natural = (uint32_t)elements * bits_of(type) / 8;
    while (c.take("[")) {
        elements *= c.is("]") ? 0 : (uint64_t)c.integer();
        c.must("]");
    }
    v.bytes = elements * bits_of(type) / 8;
    v.align = v.align ? v.align : natural;
    if (v.align & (v.align - 1))
        c.refuse("the variable %s is aligned to %u bytes, no power of two", v.name.c_str(),
                 v.align);
    return v;
}

std::vector<Variable> take_params(Cursor &c)
{
    std::vector<Variable> params;
    uint64_t at = 0;
    if (!c.take("("))
        return params;
    while (!c.take(")")) {
        if (!c.take(".param") && !c.take(".reg"))
            c.refuse("a parameter is expected in front of '%s'", c.next().c_str());
        Variable v = take_variable(c, Space::param);
        v.address = (at + v.align - 1) & ~(uint64_t)(v.align - 1);
        at = v.address + v.bytes;
        params.push_back(v);
        c.take(",");
    }
    return params;
}

// --- initial values of variables ---

namespace
{
class Initial
{
  public:
    Initial(Module &module, Cursor &cursor) : m(module), c(cursor)
    {
    }
    // The bytes behind "=", of elements of a type.
    void read(unsigned char *to, uint64_t bytes, uint32_t element)
    {
        const bool list = c.is("{");
        uint64_t at = 0;
        values(to, bytes, element, &at, list);
    }

  private:
    Module &m;
    Cursor &c;

    void values(unsigned char *to, uint64_t bytes, uint32_t element, uint64_t *at, bool list)
    {
        if (!list) {
            value(to, bytes, element, at);
            return;
        }
        c.must("{");
        while (!c.take("}")) {
            values(to, bytes, element, at, c.is("{"));
            c.take(",");
        }
    }
    void value(unsigned char *to, uint64_t bytes, uint32_t element, uint64_t *at)
    {
        uint64_t v = 0;
        const bool generic = c.take("generic");
        if (generic)
            c.must("(");
        if (c.integer_at(c.at) || c.is("-")) {
            const bool negative = c.take("-");
            const std::string word = c.next();
            const Type t = number_of(word.c_str(), word.size(), &v);
            if (t == Type::none)
                c.refuse("'%s' is no number", word.c_str());
            v = negative ? -v : v;
        } else {
            v = address();
        }
        if (generic)
            c.must(")");
        if (*at + element > bytes)
            c.refuse("more initial values than the variable has bytes");
        memcpy(to + *at, &v, element);
        *at += element;
    }
    uint64_t address()
    {
        const std::string name = c.next();
        auto known = m.variables.find(name);
        if (known == m.variables.end() || known->second.space == Space::shared)
            c.refuse("the initial value %s is no variable in device memory", name.c_str());
        return known->second.address + (uint64_t)(c.take("+") ? c.integer() : 0);
    }
};
} // namespace

// ".global .align 4 .b8 name[8] = {1, 2}" behind the state space.
static void take_module_variable(Module &m, Cursor &c, Space space, bool is_extern)
{
    const size_t begin = c.at;
    Variable v = take_variable(c, space);
    if (space != Space::shared) {
        if (is_extern)
            c.refuse("the variable %s is another module's", v.name.c_str());
        uint32_t element = 0; // bytes
        for (size_t k = begin; k < c.at; k++)
            if (type_of(c.text(k).substr(1)) != Type::none && c.text(k)[0] == '.')
                element = bits_of(type_of(c.text(k).substr(1))) / 8;
        void *memory = emu_alloc(v.bytes ? v.bytes : 1);
        if (!memory)
            c.refuse("no memory for the variable %s of %llu bytes", v.name.c_str(),
                     (unsigned long long)v.bytes);
        m.memory.push_back(memory);
        v.address = (uint64_t)(uintptr_t)memory;
        emu_open();
        memset(memory, 0, v.bytes);
        try {
            if (c.take("="))
                Initial(m, c).read((unsigned char *)memory, v.bytes, element);
        } catch (...) {
            emu_close();
            throw;
        }
        emu_close();
    }
    c.must(";");
    m.variables[v.name] = v;
}

// --- functions ---

// Below 4 GiB: some compilers take the address of a parameter in 32 bits. Whole pages.
static unsigned char *map_params(uint32_t bytes)
{
    void *p = mmap(nullptr, bytes + 1, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_32BIT, -1, 0);
    if (p == MAP_FAILED)
        refuse("no memory below 4 GiB for %u bytes of parameters", bytes);
    return (unsigned char *)p;
}

static void take_entry(Module &m, Cursor &c)
{
    auto e = std::make_unique<Entry>();
    e->module = &m;
    e->name = c.next();
    e->params = take_params(c);
    if (!e->params.empty())
        e->param_bytes = (uint32_t)(e->params.back().address + e->params.back().bytes);
    e->param_memory = map_params(e->param_bytes);
    auto three = [&](uint32_t v[3]) {
        v[0] = v[1] = v[2] = 1;
        for (int k = 0; k < 3 && (k == 0 || c.take(",")); k++)
            v[k] = (uint32_t)c.integer();
    };
    while (!c.take("{")) {
        const std::string word = c.next();
        if (word == ".maxntid") {
            three(e->max_threads);
        } else if (word == ".reqntid") {
            three(e->max_threads);
            e->exact_threads = true;
        } else if (word == ".minnctapersm") {
            e->min_blocks = (uint32_t)c.integer();
        } else if (word == ".maxnreg") {
            e->max_registers = (uint32_t)c.integer();
        } else if (word == ".maxclusterrank") {
            c.integer();
        } else if (word == ".reqnctapercluster") {
            three(e->cluster);
        } else if (word != ".explicitcluster" && word != ".blocksareclusters") {
            c.refuse("'%s' of the entry %s is not known", word.c_str(), e->name.c_str());
        }
    }
    e->body = c.at;
    c.skip_braces();
    const std::string name = e->name;
    if (!m.entries.emplace(name, std::move(e)).second)
        c.refuse("a second entry %s", name.c_str());
}

static void take_function(Module &m, Cursor &c)
{
    Function f;
    f.results = take_params(c);
    f.name = c.next();
    f.params = take_params(c);
    while (!c.is("{") && !c.is(";")) {
        const std::string word = c.next();
        if (word != ".noreturn" && word != ".unique")
            c.refuse("'%s' of the function %s is not known", word.c_str(), f.name.c_str());
    }
    if (c.next() == "{") {
        f.body = c.at;
        c.skip_braces();
    }
    Function &known = m.functions[f.name];
    if (!known.body)
        known = f;
}

static void take_header(Module &m, Cursor &c, const std::string &word)
{
    if (word == ".version") {
        const std::string v = c.next();
        m.version = atoi(v.c_str()) * 10 +
                    (v.find('.') == std::string::npos ? 0 : atoi(v.c_str() + v.find('.') + 1));
    } else if (word == ".target") {
        m.target = c.next();
        while (c.take(","))
            c.next();
    } else { // .address_size
        if (c.integer() != 64)
            c.refuse("addresses of 64 bits are expected");
    }
}

static void take_file(Module &m, Cursor &c)
{
    const uint32_t number = (uint32_t)c.integer();
    const std::string quoted = c.next();
    m.files[number] = quoted.substr(1, quoted.size() - 2);
    while (c.take(",")) // time and size
        c.integer();
}

static void take_section(Cursor &c) // of debug information: skipped
{
    while (!c.take("{"))
        c.next();
    c.skip_braces();
}

static void take_top(Module &m, Cursor &c)
{
    bool is_extern = false;
    for (;;) {
        const std::string word = c.next();
        if (word == ".version" || word == ".target" || word == ".address_size")
            return take_header(m, c, word);
        if (word == ".file")
            return take_file(m, c);
        if (word == ".section")
            return take_section(c);
        if (word == ".entry")
            return take_entry(m, c);
        if (word == ".func")
            return take_function(m, c);
        if (word == ".global" || word == ".const" || word == ".shared")
            return take_module_variable(m, c,
                                        word == ".global"  ? Space::global
                                        : word == ".const" ? Space::constant
                                                           : Space::shared,
                                        is_extern);
        if (word == ".extern")
            is_extern = true;
        else if (word != ".visible" && word != ".weak" && word != ".common")
            c.refuse("'%s' is not known here", word.c_str());
    }
}

std::unique_ptr<Module> parse(const char *text)
{
    auto m = std::make_unique<Module>();
    m->text = text;
    for (size_t at = 0; at != std::string::npos; at = m->text.find('\n', at + 1))
        m->line_at.push_back(at + (at != 0));
    split(*m);
    Cursor c(*m, 0);
    while (!c.end())
        take_top(*m, c);
    if (m->target.empty() || !m->version)
        refuse("the text names no .version or no .target: is it PTX?");
    return m;
}

Module::~Module()
{
    for (void *p : memory)
        emu_free(p);
}

Entry::~Entry()
{
    if (param_memory)
        munmap(param_memory, param_bytes + 1);
}
} // namespace ptx
