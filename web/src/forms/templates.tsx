import {
  buttonId,
  canExpand,
  descriptionId,
  errorId,
  type ArrayFieldItemTemplateProps,
  type ArrayFieldTemplateProps,
  type DescriptionFieldProps,
  type FieldErrorProps,
  type FieldTemplateProps,
  type IconButtonProps,
  type ObjectFieldTemplateProps,
  type OptionalDataControlsTemplateProps,
  type TemplatesType,
  type WrapIfAdditionalTemplateProps,
} from '@rjsf/utils';
import type { ComponentChildren } from 'preact';
import { boundsOf, PlainInput } from './number_input';

function Field(props: FieldTemplateProps) {
  const { id, label, children, errors, description, hidden, required, displayLabel, registry, schema, uiSchema } = props;
  if (hidden || schema.const !== undefined) return <div hidden>{children as ComponentChildren}</div>;
  const Wrap = registry.templates.WrapIfAdditionalTemplate;
  if (id === registry.globalFormOptions.idPrefix) {
    return (
      <>
        {children as ComponentChildren}
        {errors as ComponentChildren}
      </>
    );
  }
  const bounds = boundsOf(schema);
  const check = uiSchema?.['ui:widget'] === 'checkbox' || schema.type === 'boolean';
  return (
    <Wrap {...props}>
      <div class="field">
        {displayLabel && label && !check && (
          <label for={id}>
            {label}
            {required && <span class="needed" aria-hidden="true"> *</span>}
            {bounds && <span class="kind"> {bounds}</span>}
          </label>
        )}
        {displayLabel && !check && (description as ComponentChildren)}
        {children as ComponentChildren}
        {errors as ComponentChildren}
      </div>
    </Wrap>
  );
}

function Description({ id, description }: DescriptionFieldProps) {
  return description ? (
    <p class="hint" id={id}>
      {description as ComponentChildren}
    </p>
  ) : null;
}

function Faults({ errors, fieldPathId }: FieldErrorProps) {
  return (
    <div id={errorId(fieldPathId)}>
      {(errors ?? []).map((error) => (
        <p class="fault">{error as ComponentChildren}</p>
      ))}
    </div>
  );
}

function ObjectFields(props: ObjectFieldTemplateProps) {
  const { title, description, fieldPathId, properties, schema, uiSchema, formData, onAddProperty, disabled, readonly, optionalDataControl } = props;
  const body = properties.map((property) => property.content as ComponentChildren);
  const add = canExpand(schema, uiSchema, formData) && (
    <button type="button" class="small" id={buttonId(fieldPathId, 'add')} disabled={disabled || readonly} onClick={onAddProperty}>
      Add a field
    </button>
  );
  if (fieldPathId.path.length === 0) return <>{body}{add}</>;
  return (
    <fieldset id={fieldPathId.$id}>
      <legend>{title}</legend>
      {description && <p class="hint" id={descriptionId(fieldPathId)}>{description}</p>}
      {body}
      {optionalDataControl as ComponentChildren}
      {add}
    </fieldset>
  );
}

function Items(props: ArrayFieldTemplateProps) {
  const { title, schema, items, canAdd, onAddClick, fieldPathId, disabled, readonly, required } = props;
  const bounds = boundsOf(schema);
  return (
    <fieldset id={fieldPathId.$id}>
      <legend>
        {title}
        {required && <span class="needed" aria-hidden="true"> *</span>}
        {bounds && <span class="kind"> {bounds}</span>}
      </legend>
      {schema.description && <p class="hint" id={descriptionId(fieldPathId)}>{schema.description}</p>}
      {items as ComponentChildren}
      {canAdd && (
        <button type="button" class="small" id={buttonId(fieldPathId, 'add')} disabled={disabled || readonly} onClick={onAddClick}>
          Add {title ? `to ${title}` : 'one'}
        </button>
      )}
    </fieldset>
  );
}

function Item(props: ArrayFieldItemTemplateProps) {
  const { children, index, buttonsProps } = props;
  const { hasRemove, hasMoveUp, hasMoveDown, onRemoveItem, onMoveUpItem, onMoveDownItem, disabled, readonly } = buttonsProps;
  const number = index + 1;
  return (
    <div class="item">
      <div class="grow">{children as ComponentChildren}</div>
      <div class="tools">
        {(hasMoveUp || hasMoveDown) && (
          <>
            <button type="button" class="icon" aria-label={`Move item ${number} up`} disabled={disabled || readonly || !hasMoveUp} onClick={onMoveUpItem}>↑</button>
            <button type="button" class="icon" aria-label={`Move item ${number} down`} disabled={disabled || readonly || !hasMoveDown} onClick={onMoveDownItem}>↓</button>
          </>
        )}
        {hasRemove && (
          <button type="button" class="icon" aria-label={`Remove item ${number}`} disabled={disabled || readonly} onClick={onRemoveItem}>×</button>
        )}
      </div>
    </div>
  );
}

/** A field whose name is typed too, of an object that takes further ones. */
function Named(props: WrapIfAdditionalTemplateProps) {
  const { id, label, children, disabled, readonly, onKeyRenameBlur, onRemoveProperty, schema } = props;
  if (!('__additional_property' in schema)) return <>{children as ComponentChildren}</>;
  return (
    <div class="item">
      <input type="text" id={`${id}-key`} aria-label="Name of the field" defaultValue={label} disabled={disabled || readonly} onBlur={onKeyRenameBlur as never} />
      <div class="grow">{children as ComponentChildren}</div>
      <button type="button" class="icon" aria-label={`Remove ${label}`} disabled={disabled || readonly} onClick={onRemoveProperty}>×</button>
    </div>
  );
}

const Nothing = () => null;
const Small = ({ id, onClick, disabled, title }: IconButtonProps) => (
  <button type="button" class="small" id={id} disabled={disabled} onClick={onClick as never}>{title ?? 'Add'}</button>
);

/** Puts an object in that may be left out, or leaves it out again. */
function Optional({ id, onAddClick, onRemoveClick, schema }: OptionalDataControlsTemplateProps) {
  const [act, word] = onAddClick ? [onAddClick, 'Add'] : [onRemoveClick, 'Leave out'];
  return act ? (
    <button type="button" class="small" id={id} onClick={act as never}>{word} {schema.title ?? ''}</button>
  ) : (
    <span id={id} class="none">left out</span>
  );
}

export const templates = {
  BaseInputTemplate: PlainInput,
  FieldTemplate: Field,
  DescriptionFieldTemplate: Description,
  FieldErrorTemplate: Faults,
  ObjectFieldTemplate: ObjectFields,
  ArrayFieldTemplate: Items,
  ArrayFieldItemTemplate: Item,
  WrapIfAdditionalTemplate: Named,
  ErrorListTemplate: Nothing,
  OptionalDataControlsTemplate: Optional,
  ButtonTemplates: { SubmitButton: Nothing, AddButton: Small },
} as unknown as Partial<TemplatesType>;
