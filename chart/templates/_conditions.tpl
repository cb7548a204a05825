{{/*
CEL: does this write change a budget key of a tenant? A key with a slash is a GPU budget or looks like one. A quota
that is no map goes to the webhook, which refuses it. A release that was no tenant's had no budgets. The list binds
old and new once, as CEL has no `let` here.
*/}}
{{- define "gpu-binder.budgetChanged" -}}
object.metadata.?labels[?'apps.cozystack.io/application.kind'].orValue('') == 'Tenant' && [[
  request.operation == 'CREATE'
  || oldObject.metadata.?labels[?'apps.cozystack.io/application.kind'].orValue('') != 'Tenant'
  ? dyn({}) : dyn(oldObject).?spec.?values.?resourceQuotas.orValue({}),
  dyn(object).?spec.?values.?resourceQuotas.orValue({})
]].exists(q, q[0] != q[1] && (
  type(q[0]) != map || type(q[1]) != map
  || q[1].exists(k, k.contains('/') && !(k in q[0] && q[0][k] == q[1][k]))
  || q[0].exists(k, k.contains('/') && !(k in q[1]))
))
{{- end }}

{{/*
CEL: does this update of a device touch what the webhook guards: the order, the template mark, the leader's
fence, the finalizer? Owner references, foreign finalizers and plain labels pass without a webhook, so that the
garbage collector and namespace deletion never wait for one.
*/}}
{{- define "gpu-binder.guardedFieldChanged" -}}
request.operation == 'CREATE'
|| object.spec != oldObject.spec
|| object.metadata.?labels[?'gpu.cozystack.io/template-device'].orValue('')
!= oldObject.metadata.?labels[?'gpu.cozystack.io/template-device'].orValue('')
|| object.metadata.?annotations[?'gpu.cozystack.io/leader-epoch'].orValue('')
!= oldObject.metadata.?annotations[?'gpu.cozystack.io/leader-epoch'].orValue('')
|| ('gpu.cozystack.io/units' in object.metadata.?finalizers.orValue([]))
!= ('gpu.cozystack.io/units' in oldObject.metadata.?finalizers.orValue([]))
{{- end }}
