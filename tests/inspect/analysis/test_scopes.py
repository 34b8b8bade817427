"""Which names a script binds, compared with Python's own symbol table."""

import ast
import symtable

import pytest

from genwright.inspect.analysis.scopes import Scopes

SCRIPTS = {
    "patterns": "match x:\n    case [a, *rest]: pass\n    case {'k': b, **others}: pass\n    case int() as c: pass\n",
    "handlers": "try:\n    import os.path as place, sys\nexcept ValueError as error:\n    with open(x) as file: pass\n",
    "functions": "g = 0\ndef f(a, /, b, *c, d=1, **e):\n    global g\n    g = h = (lambda i: i)(b)\n    return h\n",
    "classes": "class A(B):\n    x: int = 1\n    def m(self):\n        local = x\n        return local\n",
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_bound_names_are_those_of_the_symbol_table(name: str) -> None:
    scopes = Scopes(ast.parse(SCRIPTS[name]))
    pending = [(symtable.symtable(SCRIPTS[name], "script", "exec"), "")]
    known = {scope.name: scope for scope in scopes.opened_by.values()}
    while pending:
        table, path = pending.pop()
        bound = {s.get_name() for s in table.get_symbols() if s.is_assigned() or s.is_imported() or s.is_parameter()}
        bound |= {child.get_name() for child in table.get_children() if child.get_name() != "lambda"}
        assert known[path].bound - known[path].declared.keys() == bound - known[path].declared.keys()
        for child in table.get_children():
            own = "<lambda>" if child.get_name() == "lambda" else child.get_name()
            pending.append((child, f"{path}.{own}" if path else own))


def test_a_name_is_looked_up_as_python_does() -> None:
    text = "x = 1\nclass A:\n    x = 2\n    def m(self):\n        return x\n    def n(self, x):\n        return x\n"
    scopes = Scopes(ast.parse(text))
    homes = [s.home("x") for s in scopes.opened_by.values()]
    assert [home.name if home else None for home in homes] == ["", "A", "", "A.n"]
