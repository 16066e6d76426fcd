"""What the tests of aot share."""

from rljax.aot import hlo

# A loop of 5 iterations that gathers a weight f32[2,16] from 4 devices into f32[8,16] and multiplies with it; then a
# sum over all 8 devices. The counter starts at 0; its bound is a constant inside a fusion.
LOOP = """\
HloModule loop, is_scheduled=true

%sum (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %add.9 = f32[] add(%a, %b)
}

%less (p: s32[]) -> pred[] {
  %p = s32[] parameter(0)
  %five = s32[] constant(5)
  ROOT %lt = pred[] compare(%p, %five), direction=LT
}

%condition (s: (s32[], f32[3,8], f32[2,16])) -> pred[] {
  %s = (s32[], f32[3,8]{1,0:T(8,128)}, /*index=2*/f32[2,16]{1,0:T(8,128)}) parameter(0)
  %count = s32[] get-tuple-element(%s), index=0
  ROOT %more = pred[] fusion(%count), kind=kLoop, calls=%less
}

%body (t: (s32[], f32[3,8], f32[2,16])) -> (s32[], f32[3,8], f32[2,16]) {
  %t = (s32[], f32[3,8]{1,0:T(8,128)}, f32[2,16]{1,0:T(8,128)}) parameter(0)
  %i = s32[] get-tuple-element(%t), index=0
  %x = f32[3,8]{1,0:T(8,128)} get-tuple-element(%t), index=1
  %w = f32[2,16]{1,0:T(8,128)S(1)} get-tuple-element(%t), index=2
  %one = s32[] constant(1)
  %next = s32[] add(%i, %one)
  %gathered = f32[8,16]{1,0:T(8,128)} all-gather(%w), channel_id=1, replica_groups=[2,4]<=[8], dimensions={0}
  %y = f32[3,16]{1,0:T(8,128)} dot(%x, %gathered), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  %z = f32[3,8]{1,0:T(8,128)} slice(%y), slice={[0:3], [0:8]}
  ROOT %out = (s32[], f32[3,8], f32[2,16]) tuple(%next, %z, %w)
}

ENTRY %main (x: f32[3,8], w: f32[2,16]) -> f32[3,8] {
  %x.1 = f32[3,8]{1,0:T(8,128)} parameter(0)
  %w.1 = f32[2,16]{1,0:T(8,128)} parameter(1)
  %zero = s32[] constant(0)
  %start = (s32[], f32[3,8], f32[2,16]) tuple(%zero, %x.1, %w.1)
  %loop = (s32[], f32[3,8], f32[2,16]) while(%start), condition=%condition, body=%body, metadata={op_name="loop"}
  %last = f32[3,8]{1,0:T(8,128)} get-tuple-element(%loop), index=1
  ROOT %all = f32[3,8]{1,0:T(8,128)} all-reduce(%last), replica_groups={{0,1,2,3,4,5,6,7}}, to_apply=%sum
}
"""


def edited(*pairs):
    text = LOOP
    for old, new in pairs:
        assert old in text
        text = text.replace(old, new)
    return hlo.parse(text)
