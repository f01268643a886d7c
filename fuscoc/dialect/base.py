"""The base of all operations, and what passes and verifiers share.

An operation declares its attributes once: ``attrs = attributes(scope=Text("node", "rank"))``. From
that come its IRDL definition, ``build`` (Python values in, operation out), ``read`` (the way back)
and its verifier, which also rejects attributes that were never declared and names the operation
and the reason in every message.
"""

from inspect import get_annotations
from typing import Any

from fuscoc.dialect.attrs import (
    VerifyError,
    attributes,
    check_named,
    decode_named,
    defined,
    encode_named,
    resolve,
    standing_in,
)
from fuscoc.dialect.fsc import Fsc
from fuscoc.dialect.mlir import ir

I64 = ir.IntegerType[64]
ILL_TYPED = "has operands, results or attributes of other types than it is defined with"


class PassError(Exception):
    """IR that a pass cannot lower, at the location of the operation to blame."""

    def __init__(self, op: Any, reason: str) -> None:
        self.location = op.location
        super().__init__(f"'{op.operation.name}' op {reason}")


class Op(Fsc.Operation):
    """Base of all fsc operations: see the module docstring.

    A subclass declares ``attrs`` and may override ``check`` (its own rules, before the ops in its
    regions were verified) and ``check_regions`` (rules over its regions, after they were).
    """

    attrs = attributes()

    def __init_subclass__(cls, **kwargs):
        own = get_annotations(cls)
        required = {name: Any for name, spec in cls.attrs.items() if not spec.optional}
        # ``ext`` wants what has a default (an inferred result) behind what has none.
        inferred = {name: own[name] for name in own if name in cls.__dict__}
        operands = {name: own[name] for name in own if name not in inferred}
        cls.__annotations__ = {**operands, **required, **inferred}
        super().__init_subclass__(**kwargs)
        if "check_regions" in vars(cls):  # others are not asked, for every operation and pass
            cls.verify_region_invariants = cls._verify_regions

    @classmethod
    def build(cls, *operands: Any, loc: Any = None, ip: Any = None, **values: Any) -> Any:
        """Create the operation from operands and from Python values for its attributes.

        Optional attributes may be left out, given as None or as an empty tuple.
        """
        encoded = encode_named(values, cls.attrs)
        required = {k: v for k, v in encoded.items() if not cls.attrs[k].optional}
        op = cls(*operands, **required, loc=loc, ip=ip)
        for name, attr in encoded.items():
            if cls.attrs[name].optional:
                op.attributes[name] = attr
        return op

    def read(self, name: str) -> Any:
        """The Python value of an attribute; None, or () for an array, if it is absent.

        Raises:
            VerifyError: the attribute is none of its kind: verifiers also read what is verified
                later.
        """
        kind, attr = self.attrs[name], self.attributes.get(name, None)
        if attr is None and not kind.optional:
            raise VerifyError(f"needs the attribute '{name}' of {self.operation.name}")
        try:
            return decode_named(attr, kind)
        except (TypeError, ValueError) as error:
            raise VerifyError(f"needs another '{name}' of {self.operation.name}") from error

    def read_item(self, name: str, position: int) -> Any:
        """One element of an array attribute: as ``read``, without the others, which may be many.

        Raises:
            VerifyError: there is no such array or element.
        """
        try:
            return decode_named(self.attributes[name][position], self.attrs[name].element)
        except (IndexError, KeyError, TypeError, ValueError) as error:
            raise VerifyError(f"needs another '{name}' of {self.operation.name}") from error

    def follow(self, name: str) -> Any:
        """The operation that the symbol in attribute ``name`` refers to; None without one.

        Raises:
            VerifyError: it names nothing, or something of another kind.
        """
        if name not in self.attributes:
            return None
        self.attrs[name].check(self, self.attributes[name])
        return resolve(self, self.attributes[name]).opview

    @classmethod
    def verify_invariants(cls, op):
        return cls._verified(op, cls._check_all)

    @classmethod
    def _verify_regions(cls, op):
        return cls._verified(op, cls.check_regions)

    @classmethod
    def _check_all(cls, op):
        given = dict(op.attributes.items())
        given.pop("operandSegmentSizes", None)
        check_named(op, given, cls.attrs, "attribute")
        if "sym_name" in cls.attrs:
            symbol = op.attributes["sym_name"].value
            if defined(op.operation.parent, symbol) != op.operation:
                raise VerifyError(f"redefines @{symbol}")
        cls.check(op)

    @classmethod
    def check(cls, op):
        """Raise VerifyError if the operation breaks a rule that its attributes alone cannot."""

    @classmethod
    def check_regions(cls, op):
        """Raise VerifyError if the operation's regions break a rule."""

    @staticmethod
    def _verified(op, check):
        try:
            check(op)
        except VerifyError as error:
            reason = str(error)
        # MLIR compares types, and numbers of operands, with the definition only after this.
        except (AttributeError, IndexError, TypeError, ValueError) as error:
            reason = f"{ILL_TYPED}: {error}"
        else:
            return True
        op.location.emit_error(f"'{op.operation.name}' op {reason}")
        return False


def check_role(op: Any, name: str, *roles: str) -> None:
    """Raise VerifyError if the input that attribute ``name`` refers to has another role."""
    given = op.follow(name)
    if given is not None and given.read("role") not in roles:
        raise VerifyError(f"must not take its {name} from an input for {given.read('role')}")


def direction_of(op: Any) -> str:
    """The direction of the path that an operation must stand in."""
    path = op.operation.parent
    if path.name != "fsc.path":
        raise VerifyError("must stand inside fsc.path")
    return path.opview.read("direction")


def entry_block(op: Any, region: int) -> Any:
    """The block of a region that must have exactly one."""
    blocks = list(op.regions[region].blocks)
    if len(blocks) != 1:
        raise VerifyError(f"needs exactly one block in region {region}, not {len(blocks)}")
    return blocks[0]


def terminator(op: Any, region: int, *expected: Any) -> Any:
    """The last operation of a one-block region, which must be of one of the classes given."""
    ops = list(entry_block(op, region).operations)
    if not ops or not isinstance(ops[-1], expected):
        wanted = " or ".join(cls.OPERATION_NAME for cls in expected)
        raise VerifyError(f"needs {wanted} at the end of region {region}")
    return ops[-1]


def ops_of(parent: Any, *classes: Any) -> list[Any]:
    """The operations of the given classes that stand directly inside ``parent``, in order.

    A list, so that the caller may erase or insert operations on the way.
    """
    return [op for op in standing_in(parent) if isinstance(op, classes)]
